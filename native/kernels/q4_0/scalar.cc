// Q4_0: 4-bit codes, one half scale per 32: weight = d * (code - 8).
// Source: the block layout `block_q4_0` of ggml, github.com/ggml-org/ggml, ggml-common.h.
#include "kernels/linear/simple_scales_scalar.h"

namespace ellm {
namespace {

struct Q4_0 : SimpleScales {
  static constexpr const char* kName = "q4_0";
  static constexpr int kGgmlType = 2;
  static constexpr int kBits = 4;
  static constexpr int kBlockBytes = 18;
  static constexpr int kOffset = 8;

  static void codes(const uint8_t* block, uint8_t* out) { nibble_codes(block + 2, 0, out); }
};

}  // namespace

extern const WeightFormat kFormat_q4_0 = quantized_format<Q4_0>();
extern const LinearKernels kLinear_q4_0_scalar = {quantized_linear<Q4_0>, nullptr, nullptr};

}  // namespace ellm
