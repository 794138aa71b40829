// F32 weights with float activations.
#include "kernels/vector/scalar.h"

#include "kernels/linear/float_tile.h"

namespace ellm {
namespace {

struct F32 {
  static constexpr const char* kName = "f32";
  static constexpr int kGgmlType = 0;
  using Stored = float;
  static F32x16 load(const Stored* p) { return ellm::load(p); }
  static float decode(Stored value) { return value; }
};

}  // namespace

extern const WeightFormat kFormat_f32 = float_format<F32>();
extern const LinearKernels kLinear_f32_scalar = {float_linear<F32>, nullptr, nullptr};

}  // namespace ellm
