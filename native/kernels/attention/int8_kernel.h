// Storing a block as int8 and attending to stored blocks; layout in int8_layout.h.
//
// A score is  (q * scales) . code_t + q . mean,  with q * scales in 16 bits: the code's rounding is then the
// only one that matters. Probabilities times the values' scales are rounded to 8 bits per block. Integer sums
// are exact, float steps in one order: the laws of kernel.h hold.
// Include after kernels/vector/<isa>.h and kernels/attention/int8_dots_<isa>.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/attention/int8_layout.h"
#include "kernels/attention/kernel.h"

namespace ellm {
namespace {

inline constexpr float kSmallestRange = 1e-30f;

// 127 / range, or zero where the range is (next to) zero.
inline F32x16 codes_per_unit(F32x16 range) {
  return zero_below(range, kSmallestRange, div(set1(127.0f), max(range, set1(kSmallestRange))));
}

inline F32x16 magnitude(F32x16 v) { return max(v, sub(zero(), v)); }

// The codes of 16 tokens' element `element` to both planes.
inline void put_key_codes(const int8_t* codes, int group, int element, int dim, uint8_t* block) {
  const int64_t place = element / 8 * Int8Block::kOctet + group * 64 + element % 4;
  const int shift = element % 8 / 4 * 4;
  for (int token = 0; token < 16; ++token) {
    const int code = codes[token] + 128;
    block[Int8Block::high_plane(dim) + place + 4 * token] |= static_cast<uint8_t>(code >> 4 << shift);
    block[Int8Block::low_plane(dim) + place + 4 * token] |= static_cast<uint8_t>((code & 15) << shift);
  }
}

inline void store_keys(const float* keys, int head_dim, uint8_t* block) {
  const int dim = padded_dim(head_dim);
  float* const mean = reinterpret_cast<float*>(block + Int8Block::mean(dim));
  float* const scales = reinterpret_cast<float*>(block + Int8Block::key_scales(dim));
  for (int i = 0; i < head_dim; ++i) {
    F32x16 key[4];
    for (int group = 0; group < 4; ++group) key[group] = load(keys + (int64_t{group} * head_dim + i) * 16);
    mean[i] = reduce_add(add(add(key[0], key[1]), add(key[2], key[3]))) / 64.0f;
    F32x16 range = zero();
    for (F32x16& k : key) {
      k = sub(k, set1(mean[i]));
      range = max(range, magnitude(k));
    }
    const float largest = reduce_max(range);
    scales[i] = largest / 127.0f;
    const F32x16 inverse = codes_per_unit(set1(largest));
    for (int group = 0; group < 4; ++group) {
      int8_t codes[16];
      store_i8(codes, min(max(mul(key[group], inverse), set1(-127.0f)), set1(127.0f)));
      put_key_codes(codes, group, i, dim, block);
    }
  }
}

inline void store_values(const float* values, int head_dim, uint8_t* block) {
  const int dim = padded_dim(head_dim);
  float* const scales = reinterpret_cast<float*>(block + Int8Block::value_scales(dim));
  uint16_t* const mean = reinterpret_cast<uint16_t*>(block);
  uint8_t* const stored = block + Int8Block::values(dim);
  for (int i = 0; i < dim; i += 16) {
    F32x16 sum = zero();
    for (int token = 0; token < kBlockTokens; ++token)
      sum = add(sum, load(values + int64_t{token} * dim + i));
    store_f16(mean + i, mul(sum, set1(1.0f / kBlockTokens)));
  }
  for (int token = 0; token < kBlockTokens; ++token) {
    const float* v = values + int64_t{token} * dim;
    F32x16 range = zero();
    for (int i = 0; i < dim; i += 16) range = max(range, magnitude(load(v + i)));
    const float largest = reduce_max(range);
    scales[token] = largest / 127.0f;
    const F32x16 inverse = codes_per_unit(set1(largest));
    for (int i = 0; i < dim; i += 16) {
      int8_t codes[16];
      store_i8(codes, min(max(mul(load(v + i), inverse), set1(-127.0f)), set1(127.0f)));
      uint8_t* const vector = stored + (int64_t{token / 4} * (dim / 16) + i / 16) * 64 + token % 4;
      for (int lane = 0; lane < 16; ++lane) vector[4 * lane] = static_cast<uint8_t>(codes[lane]);
    }
  }
}

// keys and values: a full float block, as append_f32 writes it.
void store_int8(const uint8_t* keys, const uint8_t* values, int head_dim, uint8_t* block) {
  // Codes are put bit by bit, and the padding of keys is zero.
  std::memset(block, 0, static_cast<size_t>(Int8Block::values(padded_dim(head_dim))));
  store_keys(reinterpret_cast<const float*>(keys), head_dim, block);
  store_values(reinterpret_cast<const float*>(values), head_dim, block);
}

// 256 * 127 + 127: two int8 terms can spell it.
inline constexpr float kLargestQueryCode = 32639.0f;

// Queries against one block: codes are of q * scales / unit, and q . mean is in every score.
template <int kQueries>
struct BlockQueries {
  KeyQuery codes[kQueries];
  float unit[kQueries];
  float mean_score[kQueries];
};

template <int kQueries>
inline void prepare_query(const float* q, const uint8_t* block, int dim, int j,
                          BlockQueries<kQueries>* queries) {
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
  const F32x16 inverse = set1(largest > kSmallestRange ? kLargestQueryCode / largest : 0.0f);
  int16_t codes[kMaxInt8HeadDim];
  for (int i = 0; i < dim; i += 16) {
    const F32x16 code = mul(load(scaled + i), inverse);
    store_i16(codes + i, min(max(code, set1(-kLargestQueryCode)), set1(kLargestQueryCode)));
  }
  prepare(codes, dim, &queries->codes[j]);
  queries->unit[j] = largest / kLargestQueryCode;
  queries->mean_score[j] = reduce_add(mean_score);
}

template <int kQueries>
void score_int8_group(const AttentionArgs& args, const BlockQueries<kQueries>& queries, int block,
                      const uint8_t* next_block, int group, bool seen_by_all) {
  const int dim = padded_dim(args.head_dim);
  const uint8_t* codes = args.k_blocks[block] + int64_t{group} * 64;
  const BlockPrefetch ahead(next_block, args.prefetch == Prefetch::kBlock, group, dim);
  I32x16 sums[kQueries];
  key_sums<kQueries>(codes + Int8Block::high_plane(dim), codes + Int8Block::low_plane(dim), dim,
                     queries.codes, ahead, sums);
  const int first_token = block * kBlockTokens + group * 16;
  for (int j = 0; j < kQueries; ++j) {
    const F32x16 score = fma(to_float(sums[j]), set1(queries.unit[j]), set1(queries.mean_score[j]));
    store(args.scores + j * kSegmentTokens + first_token,
          seen_by_all ? score : mask_range(score, first_token, args.begin[j], args.end[j]));
  }
}

// Codes of one block's probabilities times the values' scales; returns their unit.
inline float weigh_tokens(const float* probabilities, const float* scales, int first, int last,
                          ValueWeights* weights) {
  F32x16 largest = zero();
  for (int t = first; t < last; t += 16)
    largest = max(largest, mul(load(probabilities + t), load(scales + t)));
  const float range = reduce_max(largest);
  const F32x16 inverse = set1(range > kSmallestRange ? 255.0f / range : 0.0f);
  if (last - first < kBlockTokens) *weights = {};
  for (int t = first; t < last; t += 16) {
    const F32x16 code = mul(mul(load(probabilities + t), load(scales + t)), inverse);
    put_weights(min(max(code, zero()), set1(255.0f)), t, weights);
  }
  return range / 255.0f;
}

template <int kQueries, int kVectors>
void weigh_int8_values(const AttentionArgs& args, int block, int vector, const ValueWeights* weights,
                       const float* units) {
  const int dim = padded_dim(args.head_dim);
  const uint8_t* values = args.k_blocks[block] + Int8Block::values(dim) + int64_t{vector} * 64;
  I32x16 sums[kQueries][kVectors];
  value_sums<kQueries, kVectors>(values, dim, weights, sums);
  for (int j = 0; j < kQueries; ++j) {
    for (int v = 0; v < kVectors; ++v) {
      float* out = args.out[j] + (vector + v) * 16;
      store(out, fma(to_float(sums[j][v]), set1(units[j]), load(out)));
    }
  }
}

// What the queries of a call see of a segment, in groups of 16 tokens.
struct SeenGroups {
  explicit SeenGroups(const AttentionArgs& args) {
    int first = args.begin[0];
    int last = args.end[0];
    latest_begin = first;
    earliest_end = last;
    for (int j = 1; j < args.queries; ++j) {
      first = args.begin[j] < first ? args.begin[j] : first;
      last = args.end[j] > last ? args.end[j] : last;
      latest_begin = args.begin[j] > latest_begin ? args.begin[j] : latest_begin;
      earliest_end = args.end[j] < earliest_end ? args.end[j] : earliest_end;
    }
    first_group = first / 16;
    last_group = (last + 15) / 16;
  }
  int last_block() const { return (last_group - 1) / 4; }
  bool seen_by_all(int group) const { return group * 16 >= latest_begin && group * 16 + 16 <= earliest_end; }

  int first_group, last_group;
  int latest_begin, earliest_end;
};

template <int kQueries>
void score_int8_queries(const AttentionArgs& args) {
  const int dim = padded_dim(args.head_dim);
  const SeenGroups seen(args);
  for (int group = seen.first_group; group < seen.last_group;) {
    const int block = group / 4;
    BlockQueries<kQueries> queries;
    for (int j = 0; j < kQueries; ++j) prepare_query(args.q[j], args.k_blocks[block], dim, j, &queries);
    const bool asks = args.prefetch == Prefetch::kBlock || args.prefetch == Prefetch::kKeys;
    const uint8_t* const next_block = !asks                       ? nullptr
                                      : block < seen.last_block() ? args.k_blocks[block + 1]
                                                                  : args.next_block;
    for (; group < seen.last_group && group / 4 == block; ++group)
      score_int8_group<kQueries>(args, queries, block, next_block, group % 4, seen.seen_by_all(group));
  }
}

// Asks memory for a block's values while those of the one before are weighed: the share of some vectors.
inline void prefetch_values(const uint8_t* block, int dim, int vector, int vectors) {
  if (block == nullptr) return;
  const uint8_t* const share = block + Int8Block::values(dim) + int64_t{vector} * 16 * kBlockTokens;
  for (int i = 0; i < vectors * 16; ++i) __builtin_prefetch(share + i * 64, 0, 2);
  if (vector == 0) {
    for (int i = 0; i < 4; ++i) __builtin_prefetch(block + Int8Block::value_scales(dim) + i * 64, 0, 2);
  }
}

template <int kQueries>
void weigh_int8_queries(const AttentionArgs& args) {
  const int dim = padded_dim(args.head_dim);
  const SeenGroups seen(args);
  for (int j = 0; j < kQueries; ++j) {
    for (int i = 0; i < dim; i += 16) store(args.out[j] + i, zero());
  }
  for (int j = 0; j < kQueries; ++j) exponentiate(args, j, seen.first_group * 16, seen.last_group * 16);
  for (int block = seen.first_group / 4; block <= seen.last_block(); ++block) {
    const int from = block * 4 < seen.first_group ? (seen.first_group - block * 4) * 16 : 0;
    const int to = block * 4 + 4 > seen.last_group ? (seen.last_group - block * 4) * 16 : kBlockTokens;
    const float* scales = reinterpret_cast<const float*>(args.k_blocks[block] + Int8Block::value_scales(dim));
    ValueWeights weights[kQueries];
    float units[kQueries];
    for (int j = 0; j < kQueries; ++j) {
      const float* probabilities = args.scores + j * kSegmentTokens + block * kBlockTokens;
      units[j] = weigh_tokens(probabilities, scales, from, to, &weights[j]);
    }
    constexpr int kVectors = kQueries <= 4 ? 4 : 2;
    const uint8_t* const next_block = args.prefetch != Prefetch::kValues ? nullptr
                                      : block < seen.last_block()        ? args.k_blocks[block + 1]
                                                                         : args.next_block;
    int vector = 0;
    for (; vector + kVectors <= dim / 16; vector += kVectors) {
      prefetch_values(next_block, dim, vector, kVectors);
      weigh_int8_values<kQueries, kVectors>(args, block, vector, weights, units);
    }
    for (; vector < dim / 16; ++vector) weigh_int8_values<kQueries, 1>(args, block, vector, weights, units);
  }
}

void score_int8(const AttentionArgs& args) {
  static constexpr void (*kByQueries[kMaxQueries])(const AttentionArgs&) = {
      score_int8_queries<1>, score_int8_queries<2>, score_int8_queries<3>, score_int8_queries<4>,
      score_int8_queries<5>, score_int8_queries<6>, score_int8_queries<7>, score_int8_queries<8>};
  kByQueries[args.queries - 1](args);
}

void weigh_int8(const AttentionArgs& args) {
  static constexpr void (*kByQueries[kMaxQueries])(const AttentionArgs&) = {
      weigh_int8_queries<1>, weigh_int8_queries<2>, weigh_int8_queries<3>, weigh_int8_queries<4>,
      weigh_int8_queries<5>, weigh_int8_queries<6>, weigh_int8_queries<7>, weigh_int8_queries<8>};
  kByQueries[args.queries - 1](args);
}

void attend_int8(const AttentionArgs& args) {
  score_int8(args);
  weigh_int8(args);
}

}  // namespace
}  // namespace ellm
