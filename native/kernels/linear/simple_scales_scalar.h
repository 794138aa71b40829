// Scale plane of the 32-column formats: per group 16 halves d, then (with a minimum) 16 halves -m.
//
// The minimum's sign is flipped when repacking, so that weight = d * code - m holds for all formats.
#pragma once

#include "kernels/linear/quantized_scalar.h"

namespace ellm {
namespace {

inline void put_half(uint8_t* p, const uint8_t* half, uint16_t flip) {
  const uint16_t v = half == nullptr ? 0 : static_cast<uint16_t>(load_u16(half) ^ flip);
  std::memcpy(p, &v, sizeof v);
}

struct SimpleScales {
  static constexpr int kBlockWeights = 32;
  static constexpr int kScaleGroup = 32;
  static constexpr bool kHasMin = false;
  static constexpr int kScaleBytes = 32;

  static void repack_scales(const uint8_t* const* blocks, uint8_t* scales) {
    for (int lane = 0; lane < kTileRows; ++lane) put_half(scales + 2 * lane, blocks[lane], 0);
  }
  static ScaleAndMin scale(const uint8_t* scales, int64_t block, int, int lane) {
    return {load_half(scales + block * kScaleBytes + 2 * lane), 0.0f};
  }
};

struct SimpleScalesWithMin {
  static constexpr int kBlockWeights = 32;
  static constexpr int kScaleGroup = 32;
  static constexpr bool kHasMin = true;
  static constexpr int kOffset = 0;
  static constexpr int kScaleBytes = 64;

  static void repack_scales(const uint8_t* const* blocks, uint8_t* scales) {
    for (int lane = 0; lane < kTileRows; ++lane) {
      const uint8_t* block = blocks[lane];
      put_half(scales + 2 * lane, block, 0);
      put_half(scales + 32 + 2 * lane, block == nullptr ? nullptr : block + 2, 0x8000);
    }
  }
  static ScaleAndMin scale(const uint8_t* scales, int64_t block, int, int lane) {
    const uint8_t* p = scales + block * kScaleBytes + 2 * lane;
    return {load_half(p), load_half(p + 32)};
  }
};

// Code i of a block whose nibbles at `nibbles` hold columns 0..15 low and 16..31 high, with bit 4
// taken from `high_bits`.
inline void nibble_codes(const uint8_t* nibbles, uint32_t high_bits, uint8_t* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<uint8_t>((nibbles[i] & 15) | ((high_bits >> i) & 1) << 4);
    out[i + 16] = static_cast<uint8_t>((nibbles[i] >> 4) | ((high_bits >> (i + 16)) & 1) << 4);
  }
}

}  // namespace
}  // namespace ellm
