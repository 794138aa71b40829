// BF16 weights with float activations.
#include "kernels/vector/scalar.h"

#include "kernels/linear/float_tile.h"

namespace ellm {
namespace {

struct BF16 {
  static constexpr const char* kName = "bf16";
  static constexpr int kGgmlType = 30;
  using Stored = uint16_t;
  static F32x16 load(const Stored* p) { return ellm::load_bf16(p); }
  static float decode(Stored value) { return bf16_to_float(value); }
};

}  // namespace

extern const WeightFormat kFormat_bf16 = float_format<BF16>();
extern const LinearKernels kLinear_bf16_scalar = {float_linear<BF16>, nullptr, nullptr};

}  // namespace ellm
