// A stored int8 block of 64 tokens of one layer and KV head: K as residual of the block's mean.
//
// Centring takes out what all keys of a block share (Qwen2.5 has keys of magnitude 362; their residuals stay
// under 16). Keys have a scale per element, so that an element which RoPE turns within the block takes no
// resolution from the others; values have a scale per token. `dim` is D rounded up to 16.
// Rejected: a scale per token for keys. On the 0.5B its KL against float KV is 34 times larger.
// Source: per-channel keys and per-token values are those of KIVI, arXiv 2402.02750.
//
//   value mean   dim halves: mean of V, for blocks whose values are not read
//   mean         dim floats: mean of K
//   key scales   dim floats
//   high plane   32 * dim bytes: upper four bits of K's codes (residual / scale + 128). What lies before and
//                some octets of this are all that estimating the block's attention reads.
//                For octet o of elements, token group g (16 tokens): 64 bytes, byte 4 * token + j holds
//                element 8 o + j in its low nibble and 8 o + 4 + j in the high one
//   low plane    32 * dim bytes: the lower four bits, laid out alike
//   values       64 * dim bytes: V / scale, int8; for token quad t, vector v of 16 elements: 64 bytes,
//                byte 4 * element + j is token 4 t + j
//   value scales 64 floats
#pragma once

#include <cstdint>

#include "kernels/kernel_table.h"

namespace ellm {

inline constexpr int kMaxInt8HeadDim = 512;

namespace {

struct Int8Block {
  static constexpr int64_t kOctet = 4 * kBlockTokens;  // bytes of eight elements of all tokens, in a plane
  static constexpr int64_t lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }
  static constexpr int64_t mean(int dim) { return int64_t{2} * dim; }
  static constexpr int64_t key_scales(int dim) { return int64_t{6} * dim; }
  static constexpr int64_t high_plane(int dim) { return lines(int64_t{10} * dim); }
  static constexpr int64_t low_plane(int dim) { return high_plane(dim) + int64_t{32} * dim; }
  static constexpr int64_t values(int dim) { return high_plane(dim) + int64_t{64} * dim; }
  static constexpr int64_t value_scales(int dim) { return high_plane(dim) + int64_t{128} * dim; }
  static constexpr int64_t bytes(int dim) { return lines(value_scales(dim) + int64_t{4} * kBlockTokens); }
};

// A query against one block's upper four bits: score = unit * sum of nibble * code + offset.
struct ScanQuery {
  int8_t codes[kMaxInt8HeadDim];
  float unit;
  float offset;
};

// Asks memory for a block while 16 tokens' keys of the one before are scored: for a quarter of it, at an
// even pace. In one go it would hold up the loads behind. Into L2: a segment does not fit L1.
class BlockPrefetch {
 public:
  // block: null where there is nothing to ask for. Without `values`, only what scoring reads.
  BlockPrefetch(const uint8_t* block, bool values, int group, int dim)
      : bytes_per_element_(values ? 32 : 16),
        codes_(block == nullptr
                   ? nullptr
                   : block + Int8Block::high_plane(dim) + int64_t{group} * dim * bytes_per_element_) {
    if (block == nullptr) return;
    const int64_t header = Int8Block::high_plane(dim) / 4;
    for (int64_t i = 0; i < header; i += 64) __builtin_prefetch(block + group * header + i, 0, 2);
    if (values) __builtin_prefetch(block + Int8Block::value_scales(dim) + group * 64, 0, 2);
  }
  // Eight elements' share, four lines or without values two: those in [first, last) of four.
  void lines(int element, int first, int last) const {
    if (codes_ == nullptr) return;
    const int step = 32 / bytes_per_element_;
    for (int i = first; i < last; i += step)
      __builtin_prefetch(codes_ + element * bytes_per_element_ + i / step * 64, 0, 2);
  }

 private:
  int bytes_per_element_;
  const uint8_t* codes_;
};

}  // namespace
}  // namespace ellm
