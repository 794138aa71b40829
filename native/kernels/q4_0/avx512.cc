// Q4_0 on AVX-512 VNNI; the layout is described in scalar.cc.
#include "kernels/linear/scales_avx512.h"

namespace ellm {
namespace {

struct Q4_0 : SimpleScales {
  static constexpr int kBits = 4;
  static constexpr int kOffset = 8;
};

}  // namespace

extern const LinearKernels kLinear_q4_0_avx512 = quantized_kernels<Q4_0>();

}  // namespace ellm
