// Q8_0 on AVX-512 VNNI; the layout is described in scalar.cc.
#include "kernels/linear/scales_avx512.h"

namespace ellm {
namespace {

struct Q8_0 : SimpleScales {
  static constexpr int kBits = 8;
  static constexpr int kOffset = 128;
};

}  // namespace

extern const LinearKernels kLinear_q8_0_avx512 = quantized_kernels<Q8_0>();

}  // namespace ellm
