// Scalar twin of the integer formats: repacking, decoding and the dot product that defines the bits.
//
// A format `F` gives: kName, kGgmlType, kBits, kBlockWeights, kBlockBytes, kScaleGroup (32 or 16),
// kHasMin, kOffset (subtracted from the code; 0 if kHasMin), kScaleBytes (per kBlockWeights columns
// of a tile), and
//   codes(block, out)                   the kBlockWeights unsigned codes of a GGUF block
//   repack_scales(blocks, scales)       one block of each lane -> kScaleBytes (null lane: zeros)
//   scale(scales, block, part, lane)    {d, m} of part `part` (kScaleGroup columns) of block `block`
// with weight = d * (code - kOffset) - m.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/half.h"
#include "kernels/linear/quantized_layout.h"

namespace ellm {
namespace {

struct ScaleAndMin {
  float d;
  float m;
};

inline uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline float load_half(const uint8_t* p) { return f16_to_float(load_u16(p)); }

inline uint32_t load_u32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Writes the codes of one group, a quad of columns (four bytes of a word) at a time. The planes are
// zero where they are or-ed to.
template <int kBits>
inline void put_group(uint8_t* tile, int64_t groups, int64_t group, int lane, const uint8_t* codes) {
  using Planes = CodePlanes<kBits>;
  uint8_t* low = const_cast<uint8_t*>(Planes::low(tile, group)) + lane * 4;
  uint8_t* high = const_cast<uint8_t*>(Planes::high(tile, groups, group));
  for (int quad = 0; quad < 8; ++quad) {
    const uint32_t word = load_u32(codes + quad * 4);
    if constexpr (kBits == 8) {
      std::memcpy(low + quad * 64, &word, sizeof word);
      continue;
    }
    uint8_t* const low_word = low + quad / 2 * 64;
    const uint32_t low_bits = load_u32(low_word) | (word & 0x0f0f0f0fu) << (quad % 2 * 4);
    std::memcpy(low_word, &low_bits, sizeof low_bits);
    if constexpr (kBits == 5) {
      // Bit 4 of each byte, gathered into four neighbouring bits.
      const uint32_t bits = ((word >> 4 & 0x01010101u) * 0x10204080u) >> 28;
      high[quad * 8 + lane / 2] |= static_cast<uint8_t>(bits << (lane % 2 * 4));
    }
    if constexpr (kBits == 6) {
      uint8_t* const high_word = high + quad / 4 * 64 + lane * 4;
      const uint32_t high_bits = load_u32(high_word) | (word >> 4 & 0x03030303u) << (quad % 4 * 2);
      std::memcpy(high_word, &high_bits, sizeof high_bits);
    }
  }
}

template <int kBits>
inline int get_code(const uint8_t* tile, int64_t groups, int64_t column, int lane) {
  using Planes = CodePlanes<kBits>;
  const int64_t group = column / kGroup;
  const int quad = static_cast<int>(column % kGroup) / 4;
  const int byte = lane * 4 + static_cast<int>(column % 4);
  const uint8_t* low = Planes::low(tile, group);
  const uint8_t* high = Planes::high(tile, groups, group);
  if constexpr (kBits == 8) return low[quad * 64 + byte];
  int code = (low[quad / 2 * 64 + byte] >> (quad % 2 * 4)) & 15;
  if constexpr (kBits == 5) code |= ((high[quad * 8 + byte / 8] >> (byte % 8)) & 1) << 4;
  if constexpr (kBits == 6) code |= ((high[quad / 4 * 64 + byte] >> (quad % 4 * 2)) & 3) << 4;
  return code;
}

template <class F>
int64_t quantized_tile_bytes(int64_t cols) {
  using Planes = CodePlanes<F::kBits>;
  return round_up_to_line(cols / kGroup * (Planes::kLowBytes + Planes::kHighBytes) +
                          cols / F::kBlockWeights * F::kScaleBytes);
}

template <class F>
void repack_quantized_tile(const uint8_t* const* rows, int64_t cols, uint8_t* tile) {
  const int64_t groups = cols / kGroup;
  std::memset(tile, 0, static_cast<size_t>(quantized_tile_bytes<F>(cols)));
  uint8_t* scales = const_cast<uint8_t*>(CodePlanes<F::kBits>::scales(tile, groups));
  for (int64_t block = 0; block < cols / F::kBlockWeights; ++block) {
    const uint8_t* blocks[kTileRows];
    for (int lane = 0; lane < kTileRows; ++lane) {
      blocks[lane] = rows[lane] == nullptr ? nullptr : rows[lane] + block * F::kBlockBytes;
      if (blocks[lane] == nullptr) continue;
      uint8_t codes[F::kBlockWeights];
      F::codes(blocks[lane], codes);
      for (int part = 0; part < F::kBlockWeights / kGroup; ++part) {
        const int64_t group = block * (F::kBlockWeights / kGroup) + part;
        put_group<F::kBits>(tile, groups, group, lane, codes + part * kGroup);
      }
    }
    F::repack_scales(blocks, scales + block * F::kScaleBytes);
  }
}

template <class F>
void decode_quantized_row(const uint8_t* tile, int lane, int64_t cols, float* out) {
  const int64_t groups = cols / kGroup;
  const uint8_t* scales = CodePlanes<F::kBits>::scales(tile, groups);
  for (int64_t column = 0; column < cols; ++column) {
    const int64_t block = column / F::kBlockWeights;
    const int part = static_cast<int>(column % F::kBlockWeights) / F::kScaleGroup;
    const ScaleAndMin s = F::scale(scales, block, part, lane);
    const int code = get_code<F::kBits>(tile, groups, column, lane) - F::kOffset;
    out[column] = F::kHasMin ? s.d * static_cast<float>(code) - s.m : s.d * static_cast<float>(code);
  }
}

// A product is the sum, over groups of 32 columns in order, of
//   fma(dot of codes, d * activation scale, sum)           for each scale group, the dot being exact
//   fma(-m, activation scale * sum of codes, sum)          for formats with a minimum
//   fma(sum of the group's weights, activation centre, sum)
template <class F>
void quantized_linear(const LinearArgs& args) {
  const int64_t groups = args.cols / kGroup;
  const uint8_t* scales = CodePlanes<F::kBits>::scales(args.tile, groups);
  for (int lane = 0; lane < kTileRows; ++lane) {
    float sum[kMaxLinearRows] = {};
    for (int64_t group = 0; group < groups; ++group) {
      int8_t codes[kGroup];
      for (int i = 0; i < kGroup; ++i) {
        codes[i] =
            static_cast<int8_t>(get_code<F::kBits>(args.tile, groups, group * kGroup + i, lane) - F::kOffset);
      }
      float weight_sum = 0.0f;
      for (int begin = 0; begin < kGroup; begin += F::kScaleGroup) {
        const int64_t column = group * kGroup + begin;
        const int part = static_cast<int>(column % F::kBlockWeights) / F::kScaleGroup;
        const ScaleAndMin s = F::scale(scales, column / F::kBlockWeights, part, lane);
        int32_t code_sum = 0;
        for (int i = 0; i < F::kScaleGroup; ++i) code_sum += codes[begin + i];
        weight_sum = std::fma(s.d, static_cast<float>(code_sum), weight_sum);
        if (F::kHasMin) weight_sum = std::fma(s.m, -32.0f, weight_sum);
        for (int t = 0; t < args.rows; ++t) {
          const uint8_t* row = args.quantized.data + t * args.quantized.row_bytes;
          const int8_t* q = reinterpret_cast<const int8_t*>(row) + column;
          const float* d = reinterpret_cast<const float*>(row + args.cols);
          int32_t dot = 0;
          for (int i = 0; i < F::kScaleGroup; ++i) dot += codes[begin + i] * q[i];
          sum[t] = std::fma(static_cast<float>(dot), s.d * d[group], sum[t]);
          if (F::kHasMin) sum[t] = std::fma(-s.m, d[2 * groups + group], sum[t]);
        }
      }
      for (int t = 0; t < args.rows; ++t) {
        const uint8_t* row = args.quantized.data + t * args.quantized.row_bytes;
        const float* d = reinterpret_cast<const float*>(row + args.cols);
        sum[t] = std::fma(weight_sum, d[groups + group], sum[t]);
      }
    }
    for (int t = 0; t < args.rows; ++t) args.out[t * args.out_stride + lane] = sum[t];
  }
}

template <class F>
constexpr WeightFormat quantized_format() {
  return {F::kName,
          F::kGgmlType,
          F::kBlockWeights,
          F::kBlockBytes,
          true,
          quantized_tile_bytes<F>,
          repack_quantized_tile<F>,
          decode_quantized_row<F>};
}

}  // namespace
}  // namespace ellm
