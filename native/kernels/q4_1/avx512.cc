// Q4_1 on AVX-512 VNNI; the layout is described in scalar.cc.
#include "kernels/linear/scales_avx512.h"

namespace ellm {
namespace {

struct Q4_1 : SimpleScalesWithMin {
  static constexpr int kBits = 4;
};

}  // namespace

extern const LinearKernels kLinear_q4_1_avx512 = quantized_kernels<Q4_1>();

}  // namespace ellm
