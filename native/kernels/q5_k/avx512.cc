// Q5_K on AVX-512 VNNI; the layout is described in scalar.cc.
#include "kernels/linear/scales_avx512.h"

namespace ellm {
namespace {

struct Q5_K : SuperScales {
  static constexpr int kBits = 5;
};

}  // namespace

extern const LinearKernels kLinear_q5_k_avx512 = quantized_kernels<Q5_K>();

}  // namespace ellm
