// Attention of answer rows that read only the blocks that matter: `bounded` and `sparse` modes, int8 KV.
#pragma once

#include "ops/attention.h"
#include "ops/block_choice.h"
#include "ops/chosen_scratch.h"
#include "ops/wave.h"

namespace ellm {

// Four phases with barriers between them, for up to kWaveRows rows at a time: how much each block holds;
// which are read; attention to those, packed in order into segments; the fold, to which the blocks that were
// not read add their mass times the mean of their values. With every block chosen the segments are those of
// exact attention, and so are the bits.
class ChosenAttention {
 public:
  explicit ChosenAttention(const AttentionSpec& spec);

  int64_t scratch_bytes(const Machine& machine) const { return scratch_.bytes(machine.pool->size()); }
  void set_scratch(uint8_t* scratch) { scratch_.set(scratch); }

  // The rows of `step` whose run has a rule; called by every thread, with a barrier at the end.
  void run(Machine& machine, const Step& step, int rank) const;

 private:
  static constexpr int kMaxGroup = 128;

  void estimate(Machine& machine, const WavePart& part, int kv_head, int32_t segment, int rank) const;
  void estimate_by(Machine& machine, Estimate kind, const WavePart& part, const MassArgs& args, int kv_head,
                   int32_t first_block, int first, const ChosenScratch::Thread& thread) const;
  void attend_own(Machine& machine, const WavePart& part, int kv_head, int rank) const;
  void choose(Machine& machine, const WaveRow& row, int kv_head, int rank) const;
  void attend_chosen(Machine& machine, const WaveRow& row, int kv_head, int32_t piece, int rank) const;
  void add_means(Machine& machine, const WaveRow& row, int kv_head, int rank) const;
  void fold(Machine& machine, const WaveRow& row, int head) const;
  void count(const WaveRow& row) const;
  void observe(const WaveRow& row, int kv_head, const float* shares) const;

  // The queries [first, first + count) of a part and KV head, scaled and padded, in thread scratch.
  void load_queries(const Machine& machine, const WavePart& part, int kv_head, int first, int count,
                    float* queries) const;

  // What the rows of a part do about a KV head's blocks.
  enum class Way { kReadAll, kChoose, kReadWindow };
  Way way_of(const WavePart& part, int kv_head) const;
  bool has_estimate(const WavePart& part, int kv_head) const {
    return part.run->observed != nullptr || way_of(part, kv_head) == Way::kChoose;
  }
  const uint8_t* stored(const Machine& machine, const WavePart& part, int kv_head, int32_t block) const {
    return machine.kv->keys(spec_.layer, kv_head, part.run->blocks[block]);
  }

  AttentionSpec spec_;
  int group_;
  int dim_;
  ChosenScratch scratch_;
};

}  // namespace ellm
