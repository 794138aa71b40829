#include "ops/block_choice.h"

#include <algorithm>
#include <bit>

namespace ellm {
namespace {

// Shares from 2^-32 to 1 in steps of a sixteenth of an octave; smaller ones are one step.
constexpr int kStepBits = 19;
constexpr uint32_t kLowestStep = (127u - 32u) << (23 - kStepBits);
constexpr uint32_t kSteps = (33u << (23 - kStepBits)) + 1;
constexpr uint16_t kSkipped = 0xffff;

uint16_t step_of(float share) {
  const uint32_t step = std::bit_cast<uint32_t>(share) >> kStepBits;
  if (!(share > 0.0f) || step < kLowestStep) return 0;
  return static_cast<uint16_t>(std::min(step - kLowestStep, kSteps - 1));
}

}  // namespace

int64_t BlockChooser::scratch_bytes(int32_t max_blocks, int heads) {
  return int64_t{4} * (kSteps + 1) + int64_t{6} * max_blocks + int64_t{4} * heads;
}

BlockChooser::BlockChooser(uint8_t* scratch, int32_t max_blocks, int heads)
    : starts_(reinterpret_cast<int32_t*>(scratch)),
      order_(starts_ + kSteps + 1),
      with_(reinterpret_cast<float*>(order_ + max_blocks)),
      steps_(reinterpret_cast<uint16_t*>(with_ + heads)) {}

int32_t BlockChooser::choose(float allowance, int32_t max_blocks, int32_t blocks, int heads,
                             const float* const* shares, const float* units, const float* group,
                             int32_t* chosen, float* skipped) {
  std::fill_n(skipped, heads, 0.0f);
  const int32_t candidates = candidate_blocks(blocks);
  const int32_t at_most = candidates - std::min(kMinChosenBlocks, max_blocks);
  const int32_t at_least = candidates - std::min(candidates, max_blocks);
  int32_t skips = 0;
  sort_candidates(candidates, group);
  for (; skips < at_most; ++skips) {
    const int32_t candidate = order_[skips];
    bool covered = allowance > 0.0f;
    for (int h = 0; h < heads; ++h) {
      with_[h] = skipped[h] + shares[h][kSinkBlocks + candidate] * units[h];
      covered = covered && with_[h] <= allowance;
    }
    if (!covered && skips >= at_least) break;
    std::copy_n(with_, heads, skipped);
    steps_[candidate] = kSkipped;
  }
  int32_t count = 0;
  for (int32_t block = 0; block < blocks; ++block) {
    const int32_t candidate = block - kSinkBlocks;
    const bool may_skip = candidate >= 0 && candidate < candidates;
    if (!may_skip || steps_[candidate] != kSkipped) chosen[count++] = block;
  }
  return count;
}

// order_: the candidates from the smallest step on, within a step by position.
void BlockChooser::sort_candidates(int32_t candidates, const float* group) {
  std::fill_n(starts_, kSteps + 1, 0);
  for (int32_t i = 0; i < candidates; ++i) {
    steps_[i] = step_of(group[kSinkBlocks + i]);
    ++starts_[steps_[i] + 1];
  }
  for (uint32_t step = 1; step <= kSteps; ++step) starts_[step] += starts_[step - 1];
  for (int32_t i = 0; i < candidates; ++i) order_[starts_[steps_[i]]++] = i;
}

}  // namespace ellm
