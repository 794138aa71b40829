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

template <int kBits>
inline void put_code(uint8_t* tile, int64_t groups, int64_t column, int lane, uint8_t code) {
  using Planes = CodePlanes<kBits>;
  const int64_t group = column / kGroup;
  const int quad = static_cast<int>(column % kGroup) / 4;
  const int byte = lane * 4 + static_cast<int>(column % 4);
  uint8_t* low = const_cast<uint8_t*>(Planes::low(tile, group));
  uint8_t* high = const_cast<uint8_t*>(Planes::high(tile, groups, group));
  if constexpr (kBits == 8) {
    low[quad * 64 + byte] = code;
    return;
  }
  low[quad / 2 * 64 + byte] |= static_cast<uint8_t>((code & 15) << (quad % 2 * 4));
  if constexpr (kBits == 5) high[quad * 8 + byte / 8] |= static_cast<uint8_t>((code >> 4) << (byte % 8));
  if constexpr (kBits == 6) high[quad / 4 * 64 + byte] |= static_cast<uint8_t>((code >> 4) << (quad % 4 * 2));
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
      for (int i = 0; i < F::kBlockWeights; ++i) {
        put_code<F::kBits>(tile, groups, block * F::kBlockWeights + i, lane, codes[i]);
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

// out = sum over scale groups, ascending, of fma(dot, d * activation scale, sum), then for formats
// with a minimum fma(-m, activation scale * activation sum, sum). The integer dot is exact.
template <class F>
void quantized_linear(const LinearArgs& args) {
  const int64_t groups = args.cols / kGroup;
  const uint8_t* scales = CodePlanes<F::kBits>::scales(args.tile, groups);
  for (int lane = 0; lane < kTileRows; ++lane) {
    float sum[kMaxLinearRows] = {};
    for (int64_t begin = 0; begin < args.cols; begin += F::kScaleGroup) {
      int8_t codes[F::kScaleGroup];
      for (int i = 0; i < F::kScaleGroup; ++i) {
        codes[i] = static_cast<int8_t>(get_code<F::kBits>(args.tile, groups, begin + i, lane) - F::kOffset);
      }
      const int64_t group = begin / kGroup;
      const int part = static_cast<int>(begin % F::kBlockWeights) / F::kScaleGroup;
      const ScaleAndMin s = F::scale(scales, begin / F::kBlockWeights, part, lane);
      for (int t = 0; t < args.rows; ++t) {
        const uint8_t* row = args.quantized.data + t * args.quantized.row_bytes;
        const int8_t* q = reinterpret_cast<const int8_t*>(row) + begin;
        const float* d = reinterpret_cast<const float*>(row + args.cols);
        int32_t dot = 0;
        for (int i = 0; i < F::kScaleGroup; ++i) dot += codes[i] * q[i];
        sum[t] = std::fma(static_cast<float>(dot), s.d * d[group], sum[t]);
        if (F::kHasMin) sum[t] = std::fma(-s.m, d[groups + group], sum[t]);
      }
    }
    for (int t = 0; t < args.rows; ++t) args.out[t * args.out_stride + lane] = sum[t];
  }
}

template <class F>
constexpr WeightFormat quantized_format() {
  return {F::kName,       F::kGgmlType,
          F::kBlockWeights, F::kBlockBytes,
          true,           quantized_tile_bytes<F>,
          repack_quantized_tile<F>, decode_quantized_row<F>};
}

}  // namespace
}  // namespace ellm
