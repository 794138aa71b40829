// Q5_0 on AVX-512 VNNI; the layout is described in scalar.cc.
#include "kernels/linear/scales_avx512.h"

namespace ellm {
namespace {

struct Q5_0 : SimpleScales {
  static constexpr int kBits = 5;
  static constexpr int kOffset = 16;
};

}  // namespace

extern const LinearKernels kLinear_q5_0_avx512 = quantized_kernels<Q5_0>();

}  // namespace ellm
