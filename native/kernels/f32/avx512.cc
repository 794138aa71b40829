// F32 weights with float activations, 16 lanes of kernels/vector/avx512.h.
#include "kernels/vector/avx512.h"

#include "kernels/linear/float_tile.h"

namespace ellm {
namespace {

struct F32 {
  using Stored = float;
  static F32x16 load(const Stored* p) { return ellm::load(p); }
};

}  // namespace

extern const LinearKernels kLinear_f32_avx512 = {float_linear<F32>, nullptr, nullptr};

}  // namespace ellm
