// F16 weights with float activations, 16 lanes of kernels/vector/avx2.h.
#include "kernels/vector/avx2.h"

#include "kernels/linear/float_tile.h"

namespace ellm {
namespace {

struct F16 {
  using Stored = uint16_t;
  static F32x16 load(const Stored* p) { return ellm::load_f16(p); }
};

}  // namespace

extern const LinearKernels kLinear_f16_avx2 = {float_linear<F16>, nullptr, nullptr};

}  // namespace ellm
