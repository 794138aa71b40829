// Attention of up to 8 queries over one segment of 512 tokens, and the fold of segments.
//
// Scores: one lane per token, the head's elements in order. Outputs: one lane per element, tokens in
// order. A query's result over its own token range does not depend on the other queries: tokens
// outside its range get probability zero and add exactly nothing.
// Source: the segment merge is the online softmax of Milakov & Gimelshein, arXiv 1805.02867.
// Include after kernels/vector/<isa>.h.
#pragma once

#include <cstdint>

#include "kernels/kernel_table.h"
#include "kernels/vector/exp.h"

namespace ellm {
namespace {

struct StoredF32 {
  using Type = float;
  static F32x16 load(const Type* p) { return ellm::load(p); }
  static void store(Type* p, F32x16 v) { ellm::store(p, v); }
};

struct StoredF16 {
  using Type = uint16_t;
  static F32x16 load(const Type* p) { return load_f16(p); }
  static void store(Type* p, F32x16 v) { store_f16(p, v); }
};

template <class Stored>
void append_token(const float* k, const float* v, int token, int head_dim, uint8_t* kb, uint8_t* vb) {
  using Type = typename Stored::Type;
  Type* keys = reinterpret_cast<Type*>(kb) + token / 16 * head_dim * 16 + token % 16;
  Type* values = reinterpret_cast<Type*>(vb) + token * padded_dim(head_dim);
  for (int i = 0; i < head_dim; i += 16) {
    const int count = head_dim - i < 16 ? head_dim - i : 16;
    Type lanes[16];
    Stored::store(lanes, load_first(k + i, count));
    for (int j = 0; j < count; ++j) keys[(i + j) * 16] = lanes[j];
    Stored::store(lanes, load_first(v + i, count));
    for (int j = 0; j < count; ++j) values[i + j] = lanes[j];
  }
}

inline constexpr int kKeysAhead = 1024;  // elements of K between use and what is asked of memory

// Queries [first, first + batch) of kQueries that a loop handles at once, and the vectors of 16 tokens or
// elements that it holds for each: together they fill the registers, kAccumulators of 16 lanes, and are
// the independent chains that hide the latency of a multiply-add.
template <int kQueries, int kFirst>
constexpr int kBatch = kQueries - kFirst < kAccumulators ? kQueries - kFirst : kAccumulators;
constexpr int vectors_for(int batch) {
  return 4 * batch <= kAccumulators ? 4 : 2 * batch <= kAccumulators ? 2 : 1;
}

// Scores of kGroups token groups of one block, from `group` on, for kQueries queries from `query` on.
template <class Stored, int kQueries, int kGroups>
void score_groups(const AttentionArgs& args, int query, int block, int group) {
  using Type = typename Stored::Type;
  const int dim = args.head_dim;
  const Type* keys = reinterpret_cast<const Type*>(args.k_blocks[block]) + group * dim * 16;
  F32x16 score[kQueries][kGroups];
  for (int j = 0; j < kQueries; ++j) {
    for (int g = 0; g < kGroups; ++g) score[j][g] = zero();
  }
  for (int i = 0; i < dim; ++i) {
    for (int g = 0; g < kGroups; ++g) __builtin_prefetch(keys + (g * dim + i) * 16 + kKeysAhead);
    F32x16 k[kGroups];
    for (int g = 0; g < kGroups; ++g) k[g] = Stored::load(keys + (g * dim + i) * 16);
    for (int j = 0; j < kQueries; ++j) {
      const F32x16 q = set1(args.q[query + j][i]);
      for (int g = 0; g < kGroups; ++g) score[j][g] = fma(k[g], q, score[j][g]);
    }
  }
  for (int j = 0; j < kQueries; ++j) {
    for (int g = 0; g < kGroups; ++g) {
      const int first = block * kBlockTokens + (group + g) * 16;
      store(args.scores + (query + j) * kSegmentTokens + first,
            mask_range(score[j][g], first, args.begin[query + j], args.end[query + j]));
    }
  }
}

// Scores of one block's tokens within [first, last), and of their neighbours in a vector.
template <class Stored, int kQueries, int kFirst = 0>
void score_block(const AttentionArgs& args, int block, int first, int last) {
  constexpr int kCount = kBatch<kQueries, kFirst>;
  constexpr int kGroups = vectors_for(kCount);
  for (int group = 0; group < kBlockTokens / 16; group += kGroups) {
    const int token = block * kBlockTokens + group * 16;
    if (token < last && token + kGroups * 16 > first)
      score_groups<Stored, kCount, kGroups>(args, kFirst, block, group);
  }
  if constexpr (kFirst + kCount < kQueries) {
    score_block<Stored, kQueries, kFirst + kCount>(args, block, first, last);
  }
}

// Turns scores [first, last) into probabilities; writes max and sum. first, last: multiples of 16.
inline void exponentiate(const AttentionArgs& args, int query, int first, int last) {
  float* scores = args.scores + query * kSegmentTokens;
  F32x16 largest = set1(-__builtin_inff());
  for (int t = first; t < last; t += 16) largest = max(largest, load(scores + t));
  args.max[query] = reduce_max(largest);
  const F32x16 shift = set1(args.max[query]);
  F32x16 sum = zero();
  for (int t = first; t < last; t += 16) {
    const F32x16 p = exp(sub(load(scores + t), shift));
    store(scores + t, p);
    sum = add(sum, p);
  }
  args.sum[query] = reduce_add(sum);
}

// Adds tokens [first, last) of one block to output elements [element, element + 16 * kVectors).
template <class Stored, int kQueries, int kVectors>
void weigh_values(const AttentionArgs& args, int query, int first, int last, int element) {
  using Type = typename Stored::Type;
  F32x16 out[kQueries][kVectors];
  for (int j = 0; j < kQueries; ++j) {
    for (int v = 0; v < kVectors; ++v) out[j][v] = load(args.out[query + j] + element + v * 16);
  }
  const Type* block = reinterpret_cast<const Type*>(args.v_blocks[first / kBlockTokens]) + element;
  for (int t = first; t < last; ++t) {
    const Type* values = block + t % kBlockTokens * padded_dim(args.head_dim);
    // The next vectors of elements: rows are far apart, and the hardware's prefetching sees no stream.
    __builtin_prefetch(values + kVectors * 16);
    F32x16 value[kVectors];
    for (int v = 0; v < kVectors; ++v) value[v] = Stored::load(values + v * 16);
    for (int j = 0; j < kQueries; ++j) {
      const F32x16 p = set1(args.scores[(query + j) * kSegmentTokens + t]);
      for (int v = 0; v < kVectors; ++v) out[j][v] = fma(value[v], p, out[j][v]);
    }
  }
  for (int j = 0; j < kQueries; ++j) {
    for (int v = 0; v < kVectors; ++v) store(args.out[query + j] + element + v * 16, out[j][v]);
  }
}

template <class Stored, int kQueries, int kFirst = 0>
void weigh_elements(const AttentionArgs& args, int first, int last) {
  constexpr int kCount = kBatch<kQueries, kFirst>;
  constexpr int kVectors = vectors_for(kCount);
  const int dim = padded_dim(args.head_dim);
  int element = 0;
  for (; element + kVectors * 16 <= dim; element += kVectors * 16) {
    weigh_values<Stored, kCount, kVectors>(args, kFirst, first, last, element);
  }
  for (; element < dim; element += 16) weigh_values<Stored, kCount, 1>(args, kFirst, first, last, element);
  if constexpr (kFirst + kCount < kQueries) {
    weigh_elements<Stored, kQueries, kFirst + kCount>(args, first, last);
  }
}

template <class Stored, int kQueries>
void attend_queries(const AttentionArgs& args) {
  int first = args.begin[0];
  int last = args.end[0];
  for (int j = 1; j < kQueries; ++j) {
    first = args.begin[j] < first ? args.begin[j] : first;
    last = args.end[j] > last ? args.end[j] : last;
  }
  for (int block = first / kBlockTokens; block * kBlockTokens < last; ++block) {
    score_block<Stored, kQueries>(args, block, first, last);
  }
  const int scored_last = (last + 15) / 16 * 16;
  for (int j = 0; j < kQueries; ++j) exponentiate(args, j, first / 16 * 16, scored_last);
  for (int j = 0; j < kQueries; ++j) {
    for (int i = 0; i < padded_dim(args.head_dim); i += 16) store(args.out[j] + i, zero());
  }
  // Block by block: its values are read once for each vector of elements.
  for (int t = first; t < last;) {
    const int block_end = (t / kBlockTokens + 1) * kBlockTokens;
    const int end = block_end < last ? block_end : last;
    weigh_elements<Stored, kQueries>(args, t, end);
    t = end;
  }
}

template <class Stored>
void attend(const AttentionArgs& args) {
  static constexpr void (*kByQueries[kMaxQueries])(const AttentionArgs&) = {
      attend_queries<Stored, 1>, attend_queries<Stored, 2>, attend_queries<Stored, 3>,
      attend_queries<Stored, 4>, attend_queries<Stored, 5>, attend_queries<Stored, 6>,
      attend_queries<Stored, 7>, attend_queries<Stored, 8>};
  kByQueries[args.queries - 1](args);
}

inline float exp_of_difference(float low, float high) {
  float lanes[16];
  store(lanes, exp(set1(low - high)));
  return lanes[0];
}

void fold(const AttentionState& state, const AttentionState& segment, int head_dim) {
  const float largest = *state.max > *segment.max ? *state.max : *segment.max;
  const float keep = exp_of_difference(*state.max, largest);
  const float take = exp_of_difference(*segment.max, largest);
  *state.max = largest;
  const float taken_sum = *segment.sum * take;
  *state.sum = __builtin_fmaf(*state.sum, keep, taken_sum);
  for (int i = 0; i < head_dim; i += 16) {
    const F32x16 taken = mul(load(segment.out + i), set1(take));
    store(state.out + i, fma(load(state.out + i), set1(keep), taken));
  }
}

void finish(const AttentionState& state, int head_dim, float* out) {
  const F32x16 sum = set1(*state.sum);
  for (int i = 0; i < head_dim; i += 16) {
    const int count = head_dim - i < 16 ? head_dim - i : 16;
    store_first(out + i, div(load(state.out + i), sum), count);
  }
}

}  // namespace
}  // namespace ellm
