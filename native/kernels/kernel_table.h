// The kernels that are not weight formats, one table per ISA.
#pragma once

#include <cstdint>

#include "kernels/weight_format.h"

namespace ellm {

inline constexpr int kBlockTokens = 64;     // tokens per KV block
inline constexpr int kSegmentTokens = 512;  // tokens per attention segment
inline constexpr int kSegmentBlocks = kSegmentTokens / kBlockTokens;
inline constexpr int kMaxQueries = 8;  // queries one attention call handles

enum class KvType { kF32, kF16, kInt8 };

// D rounded up to whole vectors: the row length of V and of attention outputs. Static, so that each
// translation unit keeps its own copy, compiled for its ISA.
static constexpr int padded_dim(int head_dim) { return (head_dim + 15) / 16 * 16; }

// What int8 attention asks memory for while it works on a block: nothing where the blocks are in L2 already,
// else as much as the call reads of the next one.
enum class Prefetch { kNothing, kBlock, kKeys, kValues };

// Queries that share a KV head against one segment of 512 tokens.
//
// K of a block: [token group of 16][D][16 tokens]; V of a block: [64 tokens][padded D], the padding
// zero. A score is one lane per token, an output one lane per element of the head.
struct AttentionArgs {
  const uint8_t* const* k_blocks;  // this segment's blocks, kSegmentBlocks at most
  const uint8_t* const* v_blocks;
  int head_dim;
  int queries;            // 1..kMaxQueries
  const float* const* q;  // (padded D) each, already scaled, the padding zero
  const int32_t* begin;   // per query: tokens [begin, end) of the segment, never empty
  const int32_t* end;
  float* scores;      // scratch, kMaxQueries * kSegmentTokens
  float* max;         // out per query: largest score
  float* sum;         // out per query: sum of exp(score - max)
  float* const* out;  // out per query (padded D): sum of exp(score - max) * v
  // For int8: what to ask memory for, and what is likely read after these blocks, or null.
  Prefetch prefetch;
  const uint8_t* next_block;
};

// Folds one segment's result into the running one: both are (max, sum, out) as above.
struct AttentionState {
  float* max;
  float* sum;
  float* out;  // (padded D)
};

// How much attention blocks of int8 KV hold, up to kMaxQueries queries against up to kSegmentBlocks of them:
// sum of exp(score) over a block's tokens = sum * exp(max).
struct MassArgs {
  const uint8_t* const* blocks;
  int count;
  int head_dim;
  int queries;
  const float* const* q;       // (padded D) each, already scaled, the padding zero
  float* const* max;           // out per query: (count)
  float* const* sum;           // out per query: (count)
  const uint8_t* next_block;   // what is likely read after these, or null
  const uint8_t* spread_like;  // scan: a block whose keys spread as those of the others do
};

struct MassTotal {
  float max;  // sum * exp(max) is everything
  float sum;
};

// Blocks that are not read, through the means of their values.
struct MeansArgs {
  const uint8_t* const* blocks;
  int count;
  int head_dim;
  int queries;
  const float* const* weights;  // per query: (count) masses
  float* const* out;            // per query (padded D): sum of mass * mean of V
};

struct KernelTable {
  QuantizeGroups quantize_groups;
  // y = x / sqrt(mean(x^2) + epsilon) * weight; y may be x.
  void (*rms_norm)(const float* x, const float* weight, int64_t size, float epsilon, float* y);
  // Rotates pairs of one head in place. halves: (i, n/2 + i), else (2i, 2i + 1).
  void (*rope_halves)(float* head, int64_t rotated, const float* cosine, const float* sine);
  void (*rope_interleaved)(float* head, int64_t rotated, const float* cosine, const float* sine);
  // out = act(gate) * up
  void (*gated_silu)(const float* gate, const float* up, int64_t size, float* out);
  void (*gated_gelu)(const float* gate, const float* up, int64_t size, float* out);
  // Writes k and v (D each) of token `token` (0..63) into a block.
  void (*append_f32)(const float* k, const float* v, int token, int head_dim, uint8_t* kb, uint8_t* vb);
  void (*append_f16)(const float* k, const float* v, int token, int head_dim, uint8_t* kb, uint8_t* vb);
  void (*attend_f32)(const AttentionArgs& args);
  void (*attend_f16)(const AttentionArgs& args);
  // A full float block to its stored form (kernels/attention/int8_layout.h).
  void (*store_int8)(const uint8_t* kb, const uint8_t* vb, int head_dim, uint8_t* block);
  // k_blocks are stored blocks, v_blocks unused.
  void (*attend_int8)(const AttentionArgs& args);
  // attend_int8 in two parts: args.scores between them.
  void (*score_int8)(const AttentionArgs& args);
  void (*weigh_int8)(const AttentionArgs& args);
  // Masses (blocks) of scores (blocks * kBlockTokens).
  void (*block_masses)(const float* scores, int blocks, float* max, float* sum);
  // Estimates from the upper four bits of the keys, and from their mean.
  void (*scan_int8)(const MassArgs& args);
  void (*mean_int8)(const MassArgs& args);
  // Puts the masses of `blocks` blocks, times `scale`, at one reference: into `sum`, as sum of exp(score -
  // max). Arrays have room for whole vectors. (own_max, own_sum) is one more mass; the total includes it.
  MassTotal (*normalise_masses)(float* max, float* sum, int blocks, float scale, float own_max,
                                float own_sum);
  void (*weigh_means)(const MeansArgs& args);
  void (*fold)(const AttentionState& state, const AttentionState& segment, int head_dim);
  // out = state.out / state.sum
  void (*finish)(const AttentionState& state, int head_dim, float* out);
};

}  // namespace ellm
