// Scale plane of Q4_K and Q5_K, per 256 columns: 16 halves d, 16 halves dmin, 8 x 16 bytes with the
// low four bits of scale (low nibble) and minimum (high nibble) of each group, then 4 x 16 bytes with
// their high two bits (scale at bit 0, minimum at bit 2; even groups low nibble, odd groups high).
// That is the file's own 16 bytes per row, so that 16 lanes unpack together.
#pragma once

#include "kernels/linear/quantized_scalar.h"

namespace ellm {
namespace {

struct SuperScales {
  static constexpr int kBlockWeights = 256;
  static constexpr int kScaleGroup = 32;
  static constexpr bool kHasMin = true;
  static constexpr int kOffset = 0;
  static constexpr int kScaleBytes = 256;

  // The 6-bit scale and minimum of group j in the 12 packed bytes of a GGUF block.
  static void packed_scale(const uint8_t* packed, int j, int* scale, int* minimum) {
    if (j < 4) {
      *scale = packed[j] & 63;
      *minimum = packed[j + 4] & 63;
      return;
    }
    *scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
    *minimum = (packed[j + 4] >> 4) | (packed[j] >> 6) << 4;
  }

  static void repack_scales(const uint8_t* const* blocks, uint8_t* scales) {
    for (int lane = 0; lane < kTileRows; ++lane) {
      if (blocks[lane] == nullptr) continue;
      std::memcpy(scales + 2 * lane, blocks[lane], 2);
      std::memcpy(scales + 32 + 2 * lane, blocks[lane] + 2, 2);
      for (int j = 0; j < 8; ++j) {
        int scale, minimum;
        packed_scale(blocks[lane] + 4, j, &scale, &minimum);
        scales[64 + j * 16 + lane] = static_cast<uint8_t>((scale & 15) | (minimum & 15) << 4);
        scales[192 + j / 2 * 16 + lane] |=
            static_cast<uint8_t>((scale >> 4 | (minimum >> 4) << 2) << (j % 2 * 4));
      }
    }
  }

  static ScaleAndMin scale(const uint8_t* scales, int64_t block, int part, int lane) {
    const uint8_t* p = scales + block * kScaleBytes;
    const int low = p[64 + part * 16 + lane];
    const int high = p[192 + part / 2 * 16 + lane] >> (part % 2 * 4);
    const int scale = (low & 15) | (high & 3) << 4;
    const int minimum = (low >> 4) | (high >> 2 & 3) << 4;
    return {load_half(p + 2 * lane) * static_cast<float>(scale),
            load_half(p + 32 + 2 * lane) * static_cast<float>(minimum)};
  }
};

}  // namespace
}  // namespace ellm
