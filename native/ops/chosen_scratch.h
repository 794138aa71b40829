// Where attention that chooses blocks keeps what its phases hand on.
#pragma once

#include "kernels/kernel_table.h"
#include "ops/block_choice.h"
#include "ops/wave.h"

namespace ellm {

// Estimated masses of a row and head.
struct HeadTotal {
  MassTotal all;  // with the row's own block
  float skipped;  // share of all
};

class ChosenScratch {
 public:
  // What kernels need, one per thread; `queries` to `results` for kMaxQueries queries.
  struct Thread {
    float* queries;           // (kMaxQueries, dim)
    float* scores;            // (kMaxQueries, kSegmentTokens)
    float* results;           // (kMaxQueries, result)
    float* shares;            // (blocks)
    float* weights;           // (group, blocks)
    const uint8_t** skipped;  // (blocks)
    uint8_t* chooser;
  };

  ChosenScratch(int num_heads, int num_kv_heads, int head_dim, int32_t max_positions);

  int64_t bytes(int threads) const;
  void set(uint8_t* memory) { memory_ = reinterpret_cast<float*>(memory); }

  // Pieces of a result: chosen blocks by eights, what was skipped, the own block.
  int32_t skipped_piece() const { return segments_; }
  int32_t own_piece() const { return segments_ + 1; }
  // Of a sequence, rounded up to whole vectors of 16.
  int32_t max_blocks() const { return (segments_ + 1) / 2 * 2 * kSegmentBlocks; }

  Thread thread(int rank) const;
  // By row of the wave.
  AttentionState result(int32_t row, int head, int32_t piece) const;
  float* mass_max(int32_t row, int head) const;
  float* mass_sum(int32_t row, int head) const { return mass_max(row, head) + max_blocks(); }
  float* scores(int32_t row, int head) const;  // (positions)
  HeadTotal* total(int32_t row, int head) const;
  int32_t* chosen_count(int32_t row, int kv_head) const;
  int32_t* chosen(int32_t row, int kv_head) const { return chosen_count(row, kv_head) + 1; }

 private:
  // Of a row, in floats.
  struct Offsets {
    int64_t results;  // (heads, pieces) results
    int64_t masses;   // (heads, 2, blocks): max and sum
    int64_t scores;   // (heads, positions)
    int64_t totals;   // (heads) HeadTotal
    int64_t chosen;   // (KV heads, 1 + blocks): count and ids
    int64_t end;
  };
  int64_t result_floats() const { return dim_ + 16; }
  int64_t thread_floats() const;
  float* row(int32_t row) const { return memory_ + row * offsets_.end; }

  int num_heads_;
  int num_kv_heads_;
  int dim_;
  int32_t segments_;
  Offsets offsets_;
  float* memory_ = nullptr;
};

}  // namespace ellm
