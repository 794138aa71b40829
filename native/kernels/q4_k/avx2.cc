// Q4_K on AVX2; the layout is described in scalar.cc.
#include "kernels/linear/scales_avx2.h"

namespace ellm {
namespace {

struct Q4_K : SuperScales {
  static constexpr int kBits = 4;
};

}  // namespace

extern const LinearKernels kLinear_q4_k_avx2 = quantized_kernels<Q4_K>();

}  // namespace ellm
