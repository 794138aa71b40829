// Which blocks a row reads: those that hold a share of its attention's mass, as estimated.
#pragma once

#include <cstdint>
#include <limits>

namespace ellm {

// What masses are estimated from.
enum class Estimate { kExact, kScan, kMean };

// Always read: the first block (sinks), the last ones (window of 512 tokens), and the row's own block.
inline constexpr int kSinkBlocks = 1;
inline constexpr int kWindowBlocks = 8;
// At least so many blocks are chosen besides.
inline constexpr int kMinChosenBlocks = 4;
// A row that needs more blocks than this for its mass is said to widen: 4,096 tokens.
inline constexpr int kUsualBlocks = 64;

// How one sequence's rows choose; all of a row's choice depends on this, its position and its KV.
struct ChoiceRule {
  Estimate estimate;
  float mass;                                                // share to cover, above 0 to 1
  int32_t max_blocks = std::numeric_limits<int32_t>::max();  // chosen besides those always read
  // What calibration found, or null. By layer and KV head: how many times 1 - mass may be skipped; 0 reads
  // all blocks, kWindowOnly none but those always read. By layer and query head: factor on masses from kScan.
  const float* allowances = nullptr;
  const float* scales = nullptr;
};

inline constexpr float kWindowOnly = std::numeric_limits<float>::infinity();

// What choosing did for one row, over all layers and KV heads.
struct ChoiceCounts {
  int64_t blocks_total = 0;   // stored blocks that an exact row would read
  int64_t blocks_read = 0;    // those read in full
  int64_t widened = 0;        // times more than kUsualBlocks were needed
  double skipped_mass = 0.0;  // share of the mass that was not read, as estimated: sum over query heads
  int64_t heads = 0;          // query heads in that sum
};

// Puts blocks in order of what they hold without sorting: by the exponent and four bits of their share.
// Works in memory that the caller has.
class BlockChooser {
 public:
  static int64_t scratch_bytes(int32_t max_blocks, int heads);
  BlockChooser(uint8_t* scratch, int32_t max_blocks, int heads);

  // shares: per query head of the group (blocks) masses, `unit` times which are shares of everything; group
  // (blocks): the largest share among the heads. Writes the ids of the chosen blocks to `chosen`, ascending,
  // and per head the share that is skipped; returns how many are chosen.
  // Blocks are skipped from the smallest on (by steps of a sixteenth of an octave; within a step, the earlier
  // first), while every head skips at most `allowance`; beyond that down to `max_blocks` candidates.
  int32_t choose(float allowance, int32_t max_blocks, int32_t blocks, int heads, const float* const* shares,
                 const float* units, const float* group, int32_t* chosen, float* skipped);

 private:
  void sort_candidates(int32_t candidates, const float* group);

  int32_t* starts_;
  int32_t* order_;
  float* with_;
  uint16_t* steps_;
};

// Blocks that a row may skip.
constexpr int32_t candidate_blocks(int32_t blocks) {
  return blocks > kSinkBlocks + kWindowBlocks ? blocks - kSinkBlocks - kWindowBlocks : 0;
}
// Whether the rule reads everything whatever the blocks hold.
constexpr bool reads_all(const ChoiceRule& rule, int32_t blocks) {
  const int32_t candidates = candidate_blocks(blocks);
  return candidates <= kMinChosenBlocks || (rule.mass >= 1.0f && rule.max_blocks >= candidates);
}

}  // namespace ellm
