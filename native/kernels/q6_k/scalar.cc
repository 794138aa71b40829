// Q6_K: 256 columns in 16 parts: 6-bit codes, int8 scales of a half d: weight = d * scale * (code - 32).
// Source: the block layout `block_q6_K` of ggml, github.com/ggml-org/ggml, ggml-common.h.
//
// Scale plane, per 256 columns: 16 halves d, then 16 x 16 int8 scales (part by part, lane by lane).
#include "kernels/linear/quantized_scalar.h"

namespace ellm {
namespace {

struct Q6_K {
  static constexpr const char* kName = "q6_k";
  static constexpr int kGgmlType = 14;
  static constexpr int kBits = 6;
  static constexpr int kBlockWeights = 256;
  static constexpr int kBlockBytes = 210;
  static constexpr int kScaleGroup = 16;
  static constexpr bool kHasMin = false;
  static constexpr int kOffset = 32;
  static constexpr int kScaleBytes = 288;

  static void codes(const uint8_t* block, uint8_t* out) {
    for (int i = 0; i < 128; ++i) {
      // Byte i of the low plane: columns `first` and `first + 64` of its half.
      const int half = i / 64;
      const int within = i % 64;
      const int high = block[128 + half * 32 + within % 32] >> (within / 32 * 2);
      uint8_t* first = out + half * 128 + within;
      first[0] = static_cast<uint8_t>((block[i] & 15) | (high & 3) << 4);
      first[64] = static_cast<uint8_t>((block[i] >> 4) | (high >> 4 & 3) << 4);
    }
  }

  static void repack_scales(const uint8_t* const* blocks, uint8_t* scales) {
    for (int lane = 0; lane < kTileRows; ++lane) {
      if (blocks[lane] == nullptr) continue;
      std::memcpy(scales + 2 * lane, blocks[lane] + 208, 2);
      for (int part = 0; part < 16; ++part) scales[32 + part * 16 + lane] = blocks[lane][192 + part];
    }
  }

  static ScaleAndMin scale(const uint8_t* scales, int64_t block, int part, int lane) {
    const uint8_t* p = scales + block * kScaleBytes;
    const int code = static_cast<int8_t>(p[32 + part * 16 + lane]);
    return {load_half(p + 2 * lane) * static_cast<float>(code), 0.0f};
  }
};

}  // namespace

extern const WeightFormat kFormat_q6_k = quantized_format<Q6_K>();
extern const LinearKernels kLinear_q6_k_scalar = {quantized_linear<Q6_K>, nullptr, nullptr};

}  // namespace ellm
