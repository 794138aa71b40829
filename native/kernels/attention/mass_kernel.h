// How much of a query's attention each stored int8 block holds: exactly, or estimated without reading it all;
// and what blocks that are not read add.
//
// A block's mass is  sum * exp(max)  over its tokens' scores: no logarithm, so the bits are the same
// everywhere.
//   exact      from scores that are there already
//   scan       from the upper four bits of the keys: a code counts as the middle of the sixteen it may be,
//   the
//              query is rounded to 8 bits. Ranks blocks as well as the exact scores do.
//   mean       64 * exp(q . mean of K): a lower bound, by Jensen's inequality; blind to single tokens
// Rejected: choosing by the mean (or by bounds on elements, as Quest, arXiv 2406.10774, does) fails where
// many blocks look alike; `ellm quality --attention block-mean` shows it. Include after
// kernels/attention/int8_kernel.h.
#pragma once

#include <cstdint>

#include "kernels/attention/int8_kernel.h"

namespace ellm {
namespace {

// Asks memory for what scanning reads of a block, a quarter while 16 tokens of the one before are scanned.
class ScanPrefetch {
 public:
  ScanPrefetch(const uint8_t* block, int group, int dim)
      : lines_(block), bytes_((Int8Block::low_plane(dim) + 255) / 256 * 64) {
    if (block != nullptr) lines_ = block + group * bytes_;
  }
  // Eight elements' share of all `dim`, at an even pace.
  void operator()(int element, int dim) const {
    if (lines_ == nullptr) return;
    const int64_t octets = dim / 8;
    const int64_t lines = bytes_ / 64;
    for (int64_t i = element / 8 * lines / octets; i < (element / 8 + 1) * lines / octets; ++i)
      __builtin_prefetch(lines_ + i * 64, 0, 2);
  }

 private:
  const uint8_t* lines_;
  int64_t bytes_;
};

inline void put_mass(const F32x16 (&score)[4], float* max_out, float* sum_out) {
  const float largest = reduce_max(max(max(score[0], score[1]), max(score[2], score[3])));
  const F32x16 shift = set1(largest);
  const F32x16 low = add(exp(sub(score[0], shift)), exp(sub(score[1], shift)));
  const F32x16 high = add(exp(sub(score[2], shift)), exp(sub(score[3], shift)));
  *max_out = largest;
  *sum_out = reduce_add(add(low, high));
}

void block_masses(const float* scores, int blocks, float* max_out, float* sum_out) {
  for (int b = 0; b < blocks; ++b) {
    const float* s = scores + b * kBlockTokens;
    const F32x16 score[4] = {load(s), load(s + 16), load(s + 32), load(s + 48)};
    put_mass(score, max_out + b, sum_out + b);
  }
}

// A query against one block's upper four bits: score = unit * sum of nibble * code + offset.
struct ScanQuery {
  int8_t codes[kMaxInt8HeadDim];
  float unit;
  float offset;
};

inline void prepare_scan(const float* q, const uint8_t* block, int dim, ScanQuery* query) {
  const float* const scales = reinterpret_cast<const float*>(block + Int8Block::key_scales(dim));
  const float* const mean = reinterpret_cast<const float*>(block + Int8Block::mean(dim));
  float scaled[kMaxInt8HeadDim];
  F32x16 range = zero();
  F32x16 mean_score = zero();
  for (int i = 0; i < dim; i += 16) {
    const F32x16 v = mul(load(q + i), load(scales + i));
    store(scaled + i, v);
    range = max(range, magnitude(v));
    mean_score = fma(load(q + i), load(mean + i), mean_score);
  }
  const float largest = reduce_max(range);
  const F32x16 inverse = codes_per_unit(set1(largest));
  F32x16 sum = zero();
  for (int i = 0; i < dim; i += 16) {
    const F32x16 code = round_even(min(max(mul(load(scaled + i), inverse), set1(-127.0f)), set1(127.0f)));
    store_i8(query->codes + i, code);
    sum = add(sum, code);
  }
  // A key's code is 16 * nibble + 0..15, stored 128 too high: 16 * (nibble - 7.53125) in the middle.
  query->unit = largest / 127.0f * 16.0f;
  query->offset = __builtin_fmaf(reduce_add(sum) * -7.53125f, query->unit, reduce_add(mean_score));
}

template <int kQueries>
void scan_int8_queries(const MassArgs& args) {
  const int dim = padded_dim(args.head_dim);
  for (int b = 0; b < args.count; ++b) {
    ScanQuery queries[kQueries];
    for (int j = 0; j < kQueries; ++j) prepare_scan(args.q[j], args.blocks[b], dim, &queries[j]);
    const uint8_t* const next = b + 1 < args.count ? args.blocks[b + 1] : args.next_block;
    F32x16 score[kQueries][4];
    for (int group = 0; group < 4; ++group) {
      const ScanPrefetch ahead(next, group, dim);
      const uint8_t* nibbles = args.blocks[b] + Int8Block::high_plane(dim) + int64_t{group} * dim * 8;
      I32x16 sums[kQueries];
      nibble_sums<kQueries>(nibbles, dim, queries, ahead, sums);
      for (int j = 0; j < kQueries; ++j) {
        score[j][group] = fma(to_float(sums[j]), set1(queries[j].unit), set1(queries[j].offset));
      }
    }
    for (int j = 0; j < kQueries; ++j) put_mass(score[j], args.max[j] + b, args.sum[j] + b);
  }
}

void scan_int8(const MassArgs& args) {
  static constexpr void (*kByQueries[kMaxQueries])(const MassArgs&) = {
      scan_int8_queries<1>, scan_int8_queries<2>, scan_int8_queries<3>, scan_int8_queries<4>,
      scan_int8_queries<5>, scan_int8_queries<6>, scan_int8_queries<7>, scan_int8_queries<8>};
  kByQueries[args.queries - 1](args);
}

void mean_int8(const MassArgs& args) {
  const int dim = padded_dim(args.head_dim);
  for (int b = 0; b < args.count; ++b) {
    const float* const mean = reinterpret_cast<const float*>(args.blocks[b] + Int8Block::mean(dim));
    for (int j = 0; j < args.queries; ++j) {
      F32x16 score = zero();
      for (int i = 0; i < dim; i += 16) score = fma(load(args.q[j] + i), load(mean + i), score);
      args.max[j][b] = reduce_add(score);
      args.sum[j][b] = static_cast<float>(kBlockTokens);
    }
  }
}

inline float exp_of(float x) {
  float lanes[16];
  store(lanes, exp(set1(x)));
  return lanes[0];
}

MassTotal normalise_masses(float* max_of, float* sum_of, int blocks, float scale, float own_max,
                           float own_sum) {
  const int padded = (blocks + 15) / 16 * 16;
  for (int b = blocks; b < padded; ++b) {
    max_of[b] = -__builtin_inff();
    sum_of[b] = 0.0f;
  }
  F32x16 largest = set1(own_max);
  for (int b = 0; b < padded; b += 16) largest = max(largest, load(max_of + b));
  const float reference = reduce_max(largest);
  F32x16 total = zero();
  for (int b = 0; b < padded; b += 16) {
    const F32x16 mass = mul(mul(load(sum_of + b), exp(sub(load(max_of + b), set1(reference)))), set1(scale));
    store(sum_of + b, mass);
    total = add(total, mass);
  }
  return {reference, __builtin_fmaf(own_sum, exp_of(own_max - reference), reduce_add(total))};
}

// Four blocks per turn: the outputs stay in L1, and are read and written once for the four.
template <int kBlocks>
inline void weigh_means_of(const MeansArgs& args, int first, int dim) {
  for (int i = 0; i < dim; i += 16) {
    F32x16 mean[kBlocks];
    for (int b = 0; b < kBlocks; ++b) {
      mean[b] = load_f16(reinterpret_cast<const uint16_t*>(args.blocks[first + b]) + i);
    }
    for (int j = 0; j < args.queries; ++j) {
      F32x16 out = load(args.out[j] + i);
      for (int b = 0; b < kBlocks; ++b) out = fma(mean[b], set1(args.weights[j][first + b]), out);
      store(args.out[j] + i, out);
    }
  }
}

void weigh_means(const MeansArgs& args) {
  const int dim = padded_dim(args.head_dim);
  for (int j = 0; j < args.queries; ++j) {
    for (int i = 0; i < dim; i += 16) store(args.out[j] + i, zero());
  }
  int b = 0;
  for (; b + 4 <= args.count; b += 4) {
    for (int ahead = b + 4; ahead < b + 8 && ahead < args.count; ++ahead) {
      for (int i = 0; i < 2 * dim; i += 64) __builtin_prefetch(args.blocks[ahead] + i);
    }
    weigh_means_of<4>(args, b, dim);
  }
  for (; b < args.count; ++b) weigh_means_of<1>(args, b, dim);
}

}  // namespace
}  // namespace ellm
