// Q5_K on AVX2; the layout is described in scalar.cc.
#include "kernels/linear/scales_avx2.h"

namespace ellm {
namespace {

struct Q5_K : SuperScales {
  static constexpr int kBits = 5;
};

}  // namespace

extern const LinearKernels kLinear_q5_k_avx2 = quantized_kernels<Q5_K>();

}  // namespace ellm
