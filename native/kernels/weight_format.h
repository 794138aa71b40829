// The contract of a weight format: how its GGUF blocks become tiles, and how a tile meets activations.
//
// A matrix (rows, cols) is stored as tiles of 16 rows, padded with zero rows at the end. In a tile,
// one output row is one vector lane: a dot product needs no horizontal sum, so its float sums run in
// one order on every ISA and for any number of activation rows (law 1 of the design).
#pragma once

#include <cstdint>

namespace ellm {

inline constexpr int kTileRows = 16;
inline constexpr int kGroup = 32;         // activations per int8 scale
inline constexpr int kMaxLinearRows = 8;  // activation rows one kernel call handles

// Rows of activations as x = scale * q + centre, q int8, scale and centre per group of 32.
//
// Per row, in this order: int8 q[cols]; float scale[cols/32]; float centre[cols/32]; float
// scaled_sum[cols/32] = scale * sum of q; int32 negative_sum[cols/32]; int32 negative_half_sum[cols/16].
// Rejected: symmetric int8 without a centre. One outlier of a group then sets the range on both
// sides; on SmolLM2 that costs 1.5 times the error of the log-probabilities.
struct QuantizedRows {
  const uint8_t* data;
  int64_t row_bytes;
  int64_t cols;

  static constexpr int64_t bytes_per_row(int64_t cols) { return (cols + cols / kGroup * 24 + 63) / 64 * 64; }
};

// One tile against up to kMaxLinearRows activation rows: out[t * out_stride + lane].
struct LinearArgs {
  const uint8_t* tile;
  int64_t cols;
  QuantizedRows quantized;  // for formats with integer codes
  const float* x;           // for float formats: row t at x + t * x_stride
  int64_t x_stride;
  int rows;
  float* out;
  int64_t out_stride;
};

using LinearTile = void (*)(const LinearArgs&);

inline constexpr int64_t kExpandedGroupBytes = 704;  // of a tile, per group of 32 columns

// A format on one ISA. Where `expand` is not null, many activation rows are faster on tiles it has
// expanded (cols / kGroup * kExpandedGroupBytes); the bits are the same.
struct LinearKernels {
  LinearTile packed;
  void (*expand)(const uint8_t* tile, int64_t cols, uint8_t* out);
  LinearTile expanded;
};

// Quantises groups [first, first + count) of a row of `cols` floats (a multiple of 32) into `out`, the
// row's place in the layout of QuantizedRows.
using QuantizeGroups = void (*)(const float* x, int64_t cols, int64_t first, int64_t count, uint8_t* out);

struct WeightFormat {
  const char* name;    // as in the kernel folder
  int ggml_type;       // id in GGUF files
  int block_weights;   // weights per GGUF block
  int block_bytes;     // bytes per GGUF block
  bool integer_codes;  // true: activations int8; false: activations float
  int64_t (*tile_bytes)(int64_t cols);
  // rows[i] is the GGUF data of one matrix row, or null for padding.
  void (*repack_tile)(const uint8_t* const* rows, int64_t cols, uint8_t* tile);
  void (*decode_row)(const uint8_t* tile, int lane, int64_t cols, float* out);
};

}  // namespace ellm
