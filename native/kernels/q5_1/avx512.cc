// Q5_1 on AVX-512 VNNI; the layout is described in scalar.cc.
#include "kernels/linear/scales_avx512.h"

namespace ellm {
namespace {

struct Q5_1 : SimpleScalesWithMin {
  static constexpr int kBits = 5;
};

}  // namespace

extern const LinearKernels kLinear_q5_1_avx512 = quantized_kernels<Q5_1>();

}  // namespace ellm
