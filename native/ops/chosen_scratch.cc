#include "ops/chosen_scratch.h"

namespace ellm {

ChosenScratch::ChosenScratch(int num_heads, int num_kv_heads, int head_dim, int32_t max_positions)
    : num_heads_(num_heads),
      num_kv_heads_(num_kv_heads),
      dim_(padded_dim(head_dim)),
      segments_((max_positions + kSegmentTokens - 1) / kSegmentTokens),
      offsets_() {
  offsets_.masses = offsets_.results + int64_t{num_heads} * (segments_ + 2) * result_floats();
  offsets_.scores = offsets_.masses + int64_t{num_heads} * 2 * max_blocks();
  offsets_.totals = offsets_.scores + int64_t{num_heads} * max_blocks() * kBlockTokens;
  offsets_.chosen =
      offsets_.totals + int64_t{num_heads} * static_cast<int64_t>(sizeof(HeadTotal) / sizeof(float));
  offsets_.end = (offsets_.chosen + int64_t{num_kv_heads} * (1 + max_blocks()) + 15) / 16 * 16;
}

int64_t ChosenScratch::thread_floats() const {
  const int64_t group = num_heads_ / num_kv_heads_;
  const int64_t chooser = (BlockChooser::scratch_bytes(max_blocks(), static_cast<int>(group)) + 63) / 64 * 16;
  return kMaxQueries * (dim_ + kSegmentTokens + result_floats()) + (1 + group + 2) * max_blocks() + chooser;
}

int64_t ChosenScratch::bytes(int threads) const {
  return static_cast<int64_t>(sizeof(float)) * (kWaveRows * offsets_.end + threads * thread_floats());
}

ChosenScratch::Thread ChosenScratch::thread(int rank) const {
  const int64_t group = num_heads_ / num_kv_heads_;
  Thread scratch;
  scratch.queries = memory_ + kWaveRows * offsets_.end + rank * thread_floats();
  scratch.scores = scratch.queries + kMaxQueries * dim_;
  scratch.results = scratch.scores + kMaxQueries * kSegmentTokens;
  scratch.shares = scratch.results + kMaxQueries * result_floats();
  scratch.weights = scratch.shares + max_blocks();
  float* const pointers = scratch.weights + group * max_blocks();
  scratch.skipped = reinterpret_cast<const uint8_t**>(pointers);
  scratch.chooser = reinterpret_cast<uint8_t*>(pointers + 2 * int64_t{max_blocks()});
  return scratch;
}

AttentionState ChosenScratch::result(int32_t row_index, int head, int32_t piece) const {
  float* const place =
      row(row_index) + offsets_.results + (int64_t{head} * (segments_ + 2) + piece) * result_floats();
  return {place, place + 1, place + 16};
}

float* ChosenScratch::mass_max(int32_t row_index, int head) const {
  return row(row_index) + offsets_.masses + int64_t{head} * 2 * max_blocks();
}

float* ChosenScratch::scores(int32_t row_index, int head) const {
  return row(row_index) + offsets_.scores + int64_t{head} * max_blocks() * kBlockTokens;
}

HeadTotal* ChosenScratch::total(int32_t row_index, int head) const {
  return reinterpret_cast<HeadTotal*>(row(row_index) + offsets_.totals) + head;
}

int32_t* ChosenScratch::chosen_count(int32_t row_index, int kv_head) const {
  float* const place = row(row_index) + offsets_.chosen + int64_t{kv_head} * (1 + max_blocks());
  return reinterpret_cast<int32_t*>(place);
}

}  // namespace ellm
