// F16 weights with float activations.
#include "kernels/vector/scalar.h"

#include "kernels/linear/float_tile.h"

namespace ellm {
namespace {

struct F16 {
  static constexpr const char* kName = "f16";
  static constexpr int kGgmlType = 1;
  using Stored = uint16_t;
  static F32x16 load(const Stored* p) { return ellm::load_f16(p); }
  static float decode(Stored value) { return f16_to_float(value); }
};

}  // namespace

extern const WeightFormat kFormat_f16 = float_format<F16>();
extern const LinearKernels kLinear_f16_scalar = {float_linear<F16>, nullptr, nullptr};

}  // namespace ellm
