// A stored int8 block of 64 tokens of one layer and KV head: K as residual of the block's mean.
//
// Centring takes out what all keys of a block share (Qwen2.5 has keys of magnitude 362; their
// residuals stay under 16), so one scale per token is enough. `dim` is D rounded up to 16.
//
//   high plane   32 * dim bytes: upper four bits of K's codes (residual / scale + 128), readable alone.
//                For token group g (16 tokens), octet o of elements: 64 bytes, byte 4 * token + j holds
//                element 8 o + j in its low nibble and 8 o + 4 + j in the high one
//   low plane    32 * dim bytes: the lower four bits, laid out alike
//   values       64 * dim bytes: V / scale, int8; for token quad t, vector v of 16 elements: 64 bytes,
//                byte 4 * element + j is token 4 t + j
//   key scales   64 floats; value scales, 64 floats; mean of K, dim floats
#pragma once

#include <cstdint>

#include "kernels/kernel_table.h"

namespace ellm {

inline constexpr int kMaxInt8HeadDim = 512;

namespace {

struct Int8Block {
  static constexpr int64_t low_plane(int dim) { return int64_t{32} * dim; }
  static constexpr int64_t values(int dim) { return int64_t{64} * dim; }
  static constexpr int64_t key_scales(int dim) { return int64_t{128} * dim; }
  static constexpr int64_t value_scales(int dim) { return key_scales(dim) + 256; }
  static constexpr int64_t mean(int dim) { return value_scales(dim) + 256; }
  static constexpr int64_t bytes(int dim) { return mean(dim) + int64_t{4} * dim; }
};

// What to ask memory for while 16 tokens' keys are scored: the same tokens' planes in the next block
// (dim * 8 bytes each), and a quarter of this block's values (dim * 16 bytes), which are read last and a
// column of vectors at a time. Asked for at an even pace: in one go they would hold up the loads behind.
struct KeyPrefetch {
  const uint8_t* high;
  const uint8_t* low;
  const uint8_t* values;

  void keys(int element) const {
    __builtin_prefetch(high + element * 8);
    __builtin_prefetch(low + element * 8);
  }
  // Into L2: the values of 512 tokens would not fit L1.
  void two_lines_of_values(int element) const {
    __builtin_prefetch(values + element * 16, 0, 2);
    __builtin_prefetch(values + element * 16 + 64, 0, 2);
  }
};

}  // namespace
}  // namespace ellm
