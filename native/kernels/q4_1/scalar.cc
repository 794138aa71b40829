// Q4_1: 4-bit codes, half scale and minimum per 32: weight = d * code + m.
// Source: the block layout `block_q4_1` of ggml, github.com/ggml-org/ggml, ggml-common.h.
#include "kernels/linear/simple_scales_scalar.h"

namespace ellm {
namespace {

struct Q4_1 : SimpleScalesWithMin {
  static constexpr const char* kName = "q4_1";
  static constexpr int kGgmlType = 3;
  static constexpr int kBits = 4;
  static constexpr int kBlockBytes = 20;

  static void codes(const uint8_t* block, uint8_t* out) { nibble_codes(block + 4, 0, out); }
};

}  // namespace

extern const WeightFormat kFormat_q4_1 = quantized_format<Q4_1>();
extern const LinearKernels kLinear_q4_1_scalar = {quantized_linear<Q4_1>, nullptr, nullptr};

}  // namespace ellm
