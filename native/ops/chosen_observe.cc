// What rows that choose their blocks saw, for those who want to look.
#include <cmath>

#include "ops/chosen_attention.h"

namespace ellm {

void ChosenAttention::observe(const WaveRow& row, int kv_head, const float* shares) const {
  const Observation& observed = *row.part->run->observed;
  for (int head = kv_head * group_; head < (kv_head + 1) * group_; ++head) {
    const AttentionState own = scratch_.result(row.index, head, scratch_.own_piece());
    const int64_t place = (int64_t{row.within_run} * observed.layers + spec_.layer) * spec_.num_heads + head;
    for (float* const masses : observed.masses) {
      if (masses == nullptr || row.part->blocks >= observed.blocks) continue;
      masses[place * observed.blocks + row.part->blocks] = *own.max + std::log(*own.sum);
    }
  }
  if (observed.shares == nullptr) return;
  const int64_t place =
      (int64_t{row.within_run} * observed.layers + spec_.layer) * spec_.num_kv_heads + kv_head;
  float* const target = observed.shares + place * observed.blocks;
  // The sign says what was read, of zero too.
  for (int32_t b = 0; b < row.part->blocks; ++b) target[b] = -shares[b];
  const int32_t* const ids = scratch_.chosen(row.index, kv_head);
  for (int32_t i = 0; i < *scratch_.chosen_count(row.index, kv_head); ++i) target[ids[i]] = shares[ids[i]];
}

}  // namespace ellm
