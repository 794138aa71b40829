// Attention of answer rows that read only the blocks that matter: `bounded` and `sparse` modes, int8 KV.
#pragma once

#include <array>

#include "ops/attention.h"
#include "ops/block_choice.h"
#include "ops/chosen_scratch.h"

namespace ellm {

// Four phases with barriers between them, for up to kWaveRows rows at a time: how much each block holds; which
// are read; attention to those, packed in order into segments; the fold, to which the blocks that were not read
// add their mass times the mean of their values. With every block chosen the segments are those of exact
// attention, and so are the bits.
class ChosenAttention {
 public:
  explicit ChosenAttention(const AttentionSpec& spec);

  int64_t scratch_bytes(const Machine& machine) const { return scratch_.bytes(machine.pool->size()); }
  void set_scratch(uint8_t* scratch) { scratch_.set(scratch); }

  // The rows of `step` whose run has a rule; called by every thread, with a barrier at the end.
  void run(Machine& machine, const Step& step, int rank) const;

 private:
  static constexpr int kMaxGroup = 128;

  // Rows of one sequence and one block: they have the same stored blocks.
  struct Part {
    const RowRun* run;
    int32_t first;  // row index within the run
    int32_t rows;
    int32_t first_row;  // of the wave
    int32_t blocks;     // stored blocks before the rows' own
  };
  struct Wave {
    std::array<Part, kWaveRows> parts;
    int count = 0;
    int32_t rows = 0;
    int32_t most_segments = 0;
  };
  struct Row {
    const Part* part;
    int32_t index;  // within the wave
    int32_t within_run;
    int32_t position() const { return part->run->start + within_run; }
    int64_t of_step() const { return int64_t{part->run->first_row} + within_run; }
  };
  // The rows from *row of run *run on, as many as fit; false when there are none left.
  static bool next_wave(const Step& step, size_t* run, int32_t* row, Wave* wave);
  static Row row_at(const Wave& wave, int64_t index);

  void estimate(Machine& machine, const Part& part, int kv_head, int32_t segment, int rank) const;
  void estimate_by(Machine& machine, Estimate kind, const Part& part, const MassArgs& args, int kv_head,
                   int32_t first_block, int first, const ChosenScratch::Thread& thread) const;
  void attend_own(Machine& machine, const Part& part, int kv_head, int rank) const;
  void choose(Machine& machine, const Row& row, int kv_head, int rank) const;
  void attend_chosen(Machine& machine, const Row& row, int kv_head, int32_t piece, int rank) const;
  void add_means(Machine& machine, const Row& row, int kv_head, int rank) const;
  void fold(Machine& machine, const Row& row, int head) const;
  float correction(const Machine& machine, const Row& row, int head, const AttentionState& chosen) const;
  void count(const Row& row) const;
  void observe(const Row& row, int kv_head, const float* shares) const;

  // The queries [first, first + count) of a part and KV head, scaled and padded, in thread scratch.
  void load_queries(const Machine& machine, const Part& part, int kv_head, int first, int count,
                    float* queries) const;

  bool has_estimate(const Part& part) const {
    return part.run->observed != nullptr || !reads_all(*part.run->rule, part.blocks);
  }
  const uint8_t* stored(const Machine& machine, const Part& part, int kv_head, int32_t block) const {
    return machine.kv->keys(spec_.layer, kv_head, part.run->blocks[block]);
  }
  AttentionSpec spec_;
  int group_;
  int dim_;
  ChosenScratch scratch_;
};

}  // namespace ellm
