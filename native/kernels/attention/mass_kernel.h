// How much of a query's attention each stored int8 block holds: exactly, or estimated without reading it all;
// and what blocks that are not read add.
//
// A block's mass is  sum * exp(max)  over its tokens' scores: no logarithm, so the bits are the same
// everywhere.
//   exact      from exact scores that are there already
//   scan       from the upper four bits of the keys, in the octets of elements where the queries are
//              strong: a code counts as the middle of the sixteen it may be, other elements as their mean,
//              and the query is rounded to 8 bits. Ranks blocks as well as the exact scores do.
//   mean       64 * exp(q . mean of K): a lower bound, by Jensen's inequality; blind to single tokens
//
// Rejected: choosing by the mean fails where many blocks look alike; `ellm quality --attention block-mean`
// shows it. So do bounds on elements (Quest, arXiv 2406.10774), in the project's first experiments.
//
// Include after kernels/attention/int8_kernel.h.
#pragma once

#include <cstdint>

#include "kernels/attention/int8_kernel.h"

namespace ellm {
namespace {

// Share of the queries' squares that octets which are not scanned may have.
inline constexpr float kMissedEnergy = 0.1f;

// Asks memory for what scanning reads of a block while 16 tokens of the one before are scanned: a quarter of
// what lies before the upper bits, and 16 tokens of each octet.
class ScanPrefetch {
 public:
  // block: null where there is nothing to ask for.
  ScanPrefetch(const uint8_t* block, int group, int dim)
      : nibbles_(block == nullptr ? nullptr : block + Int8Block::high_plane(dim) + group * 64) {
    if (block == nullptr) return;
    const int64_t header = Int8Block::high_plane(dim) / 4;
    for (int64_t i = 0; i < header; i += 64) __builtin_prefetch(block + group * header + i, 0, 2);
  }
  void operator()(int32_t octet) const {
    if (nibbles_ != nullptr) __builtin_prefetch(nibbles_ + octet * Int8Block::kOctet, 0, 2);
  }

 private:
  const uint8_t* nibbles_;
};

// exp for x <= 0, relative error under 1e-3, never under the smallest normal float. The accurate one would
// take as long as the scan; shares of attention to a thousandth of themselves choose as well.
inline F32x16 rough_exp(F32x16 x) {
  const F32x16 t = max(mul(x, set1(1.44269504f)), set1(-126.0f));
  const F32x16 n = round_even(t);
  const F32x16 f = sub(t, n);
  F32x16 p = fma(f, set1(0.0558016f), set1(0.2401397f));
  p = fma(f, p, set1(0.6931472f));
  p = fma(f, p, set1(1.0f));
  return mul(p, pow2(n));
}

inline void put_mass(const F32x16 (&score)[4], float* max_out, float* sum_out) {
  const float largest = reduce_max(max(max(score[0], score[1]), max(score[2], score[3])));
  const F32x16 shift = set1(largest);
  const F32x16 low = add(rough_exp(sub(score[0], shift)), rough_exp(sub(score[1], shift)));
  const F32x16 high = add(rough_exp(sub(score[2], shift)), rough_exp(sub(score[3], shift)));
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

// The octets of elements that a scan reads, two to a vector; an odd last one is followed by zeros.
struct ScanOctets {
  int32_t index[kMaxInt8HeadDim / 8];
  int count;
  int vectors() const { return (count + 1) / 2; }
  // The elements of `from` (padded D) in these octets.
  void gather(const float* from, float* to) const {
    for (int o = 0; o < count; ++o) std::memcpy(to + o * 8, from + index[o] * 8, 8 * sizeof(float));
    if (count % 2 != 0) std::memset(to + count * 8, 0, 8 * sizeof(float));
  }
};

// Octets in which the queries are strongest against keys as they spread in `args.spread_like`: so many that
// they have all but kMissedEnergy of the queries' squares there, and at least three of eight. RoPE leaves
// what matters over a distance in few elements. Source: choosing elements by the query is SparQ attention,
// arXiv 2312.04985; here by what is one piece of memory for a block.
inline void choose_octets(const MassArgs& args, ScanOctets* octets) {
  const int dim = padded_dim(args.head_dim);
  const int all = dim / 8;
  const float* const scales = reinterpret_cast<const float*>(args.spread_like + Int8Block::key_scales(dim));
  float squares[kMaxInt8HeadDim] = {};
  for (int j = 0; j < args.queries; ++j) {
    F32x16 total = zero();
    for (int i = 0; i < dim; i += 16) {
      const F32x16 v = mul(load(args.q[j] + i), load(scales + i));
      total = fma(v, v, total);
    }
    const float sum = reduce_add(total);
    const F32x16 inverse = set1(sum > kSmallestRange ? 1.0f / sum : 0.0f);
    for (int i = 0; i < dim; i += 16) {
      const F32x16 v = mul(load(args.q[j] + i), load(scales + i));
      store(squares + i, fma(mul(v, v), inverse, load(squares + i)));
    }
  }
  float strength[kMaxInt8HeadDim / 8];
  float left = 0.0f;
  for (int o = 0; o < all; ++o) {
    const float* const s = squares + o * 8;
    strength[o] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
    left += strength[o];
  }
  const float missed = left * kMissedEnergy;
  bool taken[kMaxInt8HeadDim / 8] = {};
  int count = 0;
  while (count < all && (count * 8 < all * 3 || left > missed)) {
    int best = -1;
    for (int o = 0; o < all; ++o) {
      if (!taken[o] && (best < 0 || strength[o] > strength[best])) best = o;
    }
    taken[best] = true;
    left -= strength[best];
    ++count;
  }
  octets->count = 0;
  for (int o = 0; o < all; ++o) {
    if (taken[o]) octets->index[octets->count++] = o;
  }
}

// scales: of the block's keys in these octets; chosen: of the query's elements.
inline void prepare_scan(const float* q, const float* chosen, const float* mean, const float* scales, int dim,
                         int vectors, ScanQuery* query) {
  F32x16 mean_score = zero();
  for (int i = 0; i < dim; i += 16) mean_score = fma(load(q + i), load(mean + i), mean_score);
  F32x16 range = zero();
  for (int v = 0; v < vectors; ++v)
    range = max(range, magnitude(mul(load(chosen + v * 16), load(scales + v * 16))));
  const float largest = reduce_max(range);
  const F32x16 inverse = set1(largest > kSmallestRange ? 127.0f / largest : 0.0f);
  F32x16 sum = zero();
  for (int v = 0; v < vectors; ++v) {
    // At most 127 and an error of rounding, which this takes off.
    const F32x16 code = round_even(mul(mul(load(chosen + v * 16), load(scales + v * 16)), inverse));
    store_i8(query->codes + v * 16, code);
    sum = add(sum, code);
  }
  // A key's code is 16 * nibble + 0..15, stored 128 too high: 16 * (nibble - 7.53125) in the middle. Elements
  // of octets that are not read count as their mean.
  query->unit = largest / 127.0f * 16.0f;
  query->offset = __builtin_fmaf(reduce_add(sum) * -7.53125f, query->unit, reduce_add(mean_score));
}

template <int kQueries>
void scan_int8_queries(const MassArgs& args) {
  const int dim = padded_dim(args.head_dim);
  ScanOctets octets;
  choose_octets(args, &octets);
  float chosen[kQueries][kMaxInt8HeadDim];
  for (int j = 0; j < kQueries; ++j) octets.gather(args.q[j], chosen[j]);
  for (int b = 0; b < args.count; ++b) {
    const uint8_t* const block = args.blocks[b];
    const float* const mean = reinterpret_cast<const float*>(block + Int8Block::mean(dim));
    float scales[kMaxInt8HeadDim];
    octets.gather(reinterpret_cast<const float*>(block + Int8Block::key_scales(dim)), scales);
    ScanQuery queries[kQueries];
    for (int j = 0; j < kQueries; ++j)
      prepare_scan(args.q[j], chosen[j], mean, scales, dim, octets.vectors(), &queries[j]);
    const uint8_t* const next = b + 1 < args.count ? args.blocks[b + 1] : args.next_block;
    const uint8_t* const nibbles = block + Int8Block::high_plane(dim);
    F32x16 score[kQueries][4];
    for (int group = 0; group < 4; ++group) {
      const ScanPrefetch ahead(next, group, dim);
      I32x16 sums[kQueries];
      nibble_sums<kQueries>(nibbles + group * 64, octets.index, octets.count, queries, ahead, sums);
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
