// Q4_K on AVX-512 VNNI; the layout is described in scalar.cc.
#include "kernels/linear/scales_avx512.h"

namespace ellm {
namespace {

struct Q4_K : SuperScales {
  static constexpr int kBits = 4;
};

}  // namespace

extern const LinearKernels kLinear_q4_k_avx512 = quantized_kernels<Q4_K>();

}  // namespace ellm
