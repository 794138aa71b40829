// Q8_0: 8-bit codes, one half scale per 32: weight = d * (code - 128), code = the file's int8 + 128.
// Source: the block layout `block_q8_0` of ggml, github.com/ggml-org/ggml, ggml-common.h.
#include "kernels/linear/simple_scales_scalar.h"

namespace ellm {
namespace {

struct Q8_0 : SimpleScales {
  static constexpr const char* kName = "q8_0";
  static constexpr int kGgmlType = 8;
  static constexpr int kBits = 8;
  static constexpr int kBlockBytes = 34;
  static constexpr int kOffset = 128;

  static void codes(const uint8_t* block, uint8_t* out) {
    for (int i = 0; i < 32; ++i) out[i] = static_cast<uint8_t>(block[2 + i] ^ 0x80);
  }
};

}  // namespace

extern const WeightFormat kFormat_q8_0 = quantized_format<Q8_0>();
extern const LinearKernels kLinear_q8_0_scalar = {quantized_linear<Q8_0>, nullptr, nullptr};

}  // namespace ellm
