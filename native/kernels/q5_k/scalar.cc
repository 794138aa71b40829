// Q5_K: 256 columns in 8 groups: 5-bit codes, 6-bit scales and minima of half d and dmin.
// Source: the block layout `block_q5_K` of ggml, github.com/ggml-org/ggml, ggml-common.h.
#include "kernels/linear/super_scales_scalar.h"

namespace ellm {
namespace {

struct Q5_K : SuperScales {
  static constexpr const char* kName = "q5_k";
  static constexpr int kGgmlType = 13;
  static constexpr int kBits = 5;
  static constexpr int kBlockBytes = 176;

  static void codes(const uint8_t* block, uint8_t* out) {
    const uint8_t* high = block + 16;
    for (int i = 0; i < 128; ++i) {
      const int chunk = i / 32;
      const int bits = high[i % 32] >> (2 * chunk);
      uint8_t* pair = out + chunk * 64 + i % 32;
      pair[0] = static_cast<uint8_t>((block[48 + i] & 15) | (bits & 1) << 4);
      pair[32] = static_cast<uint8_t>((block[48 + i] >> 4) | (bits >> 1 & 1) << 4);
    }
  }
};

}  // namespace

extern const WeightFormat kFormat_q5_k = quantized_format<Q5_K>();
extern const LinearKernels kLinear_q5_k_scalar = {quantized_linear<Q5_K>, nullptr, nullptr};

}  // namespace ellm
