// Q5_1: 5-bit codes, half scale and minimum per 32: weight = d * code + m.
// Source: the block layout `block_q5_1` of ggml, github.com/ggml-org/ggml, ggml-common.h.
#include "kernels/linear/simple_scales_scalar.h"

namespace ellm {
namespace {

struct Q5_1 : SimpleScalesWithMin {
  static constexpr const char* kName = "q5_1";
  static constexpr int kGgmlType = 7;
  static constexpr int kBits = 5;
  static constexpr int kBlockBytes = 24;

  static void codes(const uint8_t* block, uint8_t* out) { nibble_codes(block + 8, load_u32(block + 4), out); }
};

}  // namespace

extern const WeightFormat kFormat_q5_1 = quantized_format<Q5_1>();
extern const LinearKernels kLinear_q5_1_scalar = {quantized_linear<Q5_1>, nullptr, nullptr};

}  // namespace ellm
