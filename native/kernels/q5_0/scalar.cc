// Q5_0: 5-bit codes, one half scale per 32: weight = d * (code - 16).
// Source: the block layout `block_q5_0` of ggml, github.com/ggml-org/ggml, ggml-common.h.
#include "kernels/linear/simple_scales_scalar.h"

namespace ellm {
namespace {

struct Q5_0 : SimpleScales {
  static constexpr const char* kName = "q5_0";
  static constexpr int kGgmlType = 6;
  static constexpr int kBits = 5;
  static constexpr int kBlockBytes = 22;
  static constexpr int kOffset = 16;

  static void codes(const uint8_t* block, uint8_t* out) { nibble_codes(block + 6, load_u32(block + 2), out); }
};

}  // namespace

extern const WeightFormat kFormat_q5_0 = quantized_format<Q5_0>();
extern const LinearKernels kLinear_q5_0_scalar = {quantized_linear<Q5_0>, nullptr, nullptr};

}  // namespace ellm
