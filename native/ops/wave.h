// The rows of a step that choose their blocks, a few at a time.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "ops/step.h"

namespace ellm {

inline constexpr int kWaveRows = 8;  // rows that go through the phases together

// Rows of one sequence and one block: they have the same stored blocks.
struct WavePart {
  const RowRun* run;
  int32_t first;  // row index within the run
  int32_t rows;
  int32_t first_row;  // of the wave
  int32_t blocks;     // stored blocks before the rows' own
};

struct WaveRow {
  const WavePart* part;
  int32_t index;  // within the wave
  int32_t within_run;
  int64_t of_step() const { return int64_t{part->run->first_row} + within_run; }
};

struct Wave {
  std::array<WavePart, kWaveRows> parts;
  int count = 0;
  int32_t rows = 0;
  int32_t most_segments = 0;

  WaveRow row(int64_t index) const {
    const WavePart* part = parts.data();
    while (index >= part->first_row + part->rows) ++part;
    return {part, static_cast<int32_t>(index), part->first + static_cast<int32_t>(index) - part->first_row};
  }
};

class Waves {
 public:
  explicit Waves(const Step& step) : runs_(*step.runs) {}

  // The next rows, as many as fit, or null when there are none left; valid until the next call.
  const Wave* next() {
    wave_ = {};
    for (; run_ < runs_.size(); ++run_, row_ = 0) {
      if (runs_[run_].rule == nullptr) continue;
      while (row_ < runs_[run_].count && wave_.rows < kWaveRows) add(runs_[run_]);
      if (row_ < runs_[run_].count) break;
    }
    return wave_.rows > 0 ? &wave_ : nullptr;
  }

 private:
  // Rows of the run from row_ on, up to the end of their block.
  void add(const RowRun& run) {
    const int32_t position = run.start + row_;
    const int32_t left_in_block = kBlockTokens - position % kBlockTokens;
    const int32_t rows = std::min({run.count - row_, left_in_block, kWaveRows - wave_.rows});
    const int32_t blocks = position / kBlockTokens;
    wave_.parts[static_cast<size_t>(wave_.count++)] = {&run, row_, rows, wave_.rows, blocks};
    wave_.rows += rows;
    wave_.most_segments = std::max(wave_.most_segments, (blocks + kSegmentBlocks - 1) / kSegmentBlocks);
    row_ += rows;
  }

  const std::vector<RowRun>& runs_;
  size_t run_ = 0;
  int32_t row_ = 0;
  Wave wave_;
};

}  // namespace ellm
