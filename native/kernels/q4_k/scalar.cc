// Q4_K: 256 columns in 8 groups: 4-bit codes, 6-bit scales and minima of half d and dmin.
// Source: the block layout `block_q4_K` of ggml, github.com/ggml-org/ggml, ggml-common.h.
#include "kernels/linear/super_scales_scalar.h"

namespace ellm {
namespace {

struct Q4_K : SuperScales {
  static constexpr const char* kName = "q4_k";
  static constexpr int kGgmlType = 12;
  static constexpr int kBits = 4;
  static constexpr int kBlockBytes = 144;

  static void codes(const uint8_t* block, uint8_t* out) {
    for (int i = 0; i < 128; ++i) {
      uint8_t* pair = out + i / 32 * 64 + i % 32;
      pair[0] = block[16 + i] & 15;
      pair[32] = block[16 + i] >> 4;
    }
  }
};

}  // namespace

extern const WeightFormat kFormat_q4_k = quantized_format<Q4_K>();
extern const LinearKernels kLinear_q4_k_scalar = {quantized_linear<Q4_K>, nullptr, nullptr};

}  // namespace ellm
