// Float formats: a tile is [cols][16] weights; each lane is one chain of fused multiply-adds.
//
// A format `F` gives kName, kGgmlType, Stored, load(const Stored*) -> F32x16 and decode(Stored).
// Include after kernels/vector/<isa>.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/weight_format.h"

namespace ellm {
namespace {

template <class F, int kRows>
void float_linear_rows(const LinearArgs& args, int first) {
  const auto* w = reinterpret_cast<const typename F::Stored*>(args.tile);
  const float* x[kRows];
  F32x16 sum[kRows];
  for (int t = 0; t < kRows; ++t) {
    x[t] = args.x + (first + t) * args.x_stride;
    sum[t] = zero();
  }
  for (int64_t column = 0; column < args.cols; ++column) {
    const F32x16 weights = F::load(w + column * kTileRows);
    for (int t = 0; t < kRows; ++t) sum[t] = fma(weights, set1(x[t][column]), sum[t]);
  }
  for (int t = 0; t < kRows; ++t) store(args.out + (first + t) * args.out_stride, sum[t]);
}

template <class F>
void float_linear(const LinearArgs& args) {
  for (int first = 0; first < args.rows; first += 4) {
    switch (args.rows - first) {
      case 1: float_linear_rows<F, 1>(args, first); break;
      case 2: float_linear_rows<F, 2>(args, first); break;
      case 3: float_linear_rows<F, 3>(args, first); break;
      default: float_linear_rows<F, 4>(args, first); break;
    }
  }
}

template <class F>
int64_t float_tile_bytes(int64_t cols) {
  return (cols * kTileRows * static_cast<int64_t>(sizeof(typename F::Stored)) + 63) / 64 * 64;
}

template <class F>
void repack_float_tile(const uint8_t* const* rows, int64_t cols, uint8_t* tile) {
  constexpr size_t kSize = sizeof(typename F::Stored);
  std::memset(tile, 0, static_cast<size_t>(float_tile_bytes<F>(cols)));
  for (int lane = 0; lane < kTileRows; ++lane) {
    if (rows[lane] == nullptr) continue;
    for (int64_t column = 0; column < cols; ++column) {
      std::memcpy(tile + static_cast<size_t>(column * kTileRows + lane) * kSize,
                  rows[lane] + static_cast<size_t>(column) * kSize, kSize);
    }
  }
}

template <class F>
void decode_float_row(const uint8_t* tile, int lane, int64_t cols, float* out) {
  const auto* w = reinterpret_cast<const typename F::Stored*>(tile);
  for (int64_t column = 0; column < cols; ++column) out[column] = F::decode(w[column * kTileRows + lane]);
}

template <class F>
constexpr WeightFormat float_format() {
  return {F::kName,
          F::kGgmlType,
          1,
          static_cast<int>(sizeof(typename F::Stored)),
          false,
          float_tile_bytes<F>,
          repack_float_tile<F>,
          decode_float_row<F>};
}

}  // namespace
}  // namespace ellm
