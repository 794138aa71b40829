// What one step works on: its rows, the arena its slots live in, the pool that runs it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dispatch/dispatch.h"
#include "kv/kv_store.h"
#include "ops/block_choice.h"
#include "threading/thread_pool.h"

namespace ellm {

// What rows with a choice saw, for those who want to look: arrays by row of the run, layer, head and block of
// the sequence; null where not wanted. Filled where a row has blocks to choose from.
struct Observation {
  int32_t layers;
  int32_t blocks;
  float* shares;  // by KV head: the largest share among its query heads, negative where not read
  float*
      masses[3];  // by query head and Estimate: logarithm of the block's mass, the row's own block included
};

// Consecutive rows of one sequence.
struct RowRun {
  const int32_t* blocks;  // KV block ids of the sequence, covering start + count tokens
  int32_t start;          // position of the first row
  int32_t count;
  int32_t first_row;                 // index of the first row in the step
  const ChoiceRule* rule = nullptr;  // int8 KV only; null: rows attend exactly
  ChoiceCounts* counts = nullptr;    // (count), added to; given with a rule
  const Observation* observed = nullptr;
};

// A (T, width) float matrix; `quantized` beside it when an int8 linear reads it.
struct SlotMemory {
  int64_t width = 0;
  bool has_quantized = false;
  float* values = nullptr;
  uint8_t* quantized = nullptr;

  float* row(int64_t t) const { return values + t * width; }
  uint8_t* quantized_row(int64_t t) const { return quantized + t * QuantizedRows::bytes_per_row(width); }
};

// Where the rows of a slot go, as they are before op `op` of the program.
struct Tap {
  size_t op;
  int slot;
  float* out;  // (T, width)
};

struct Step {
  const int32_t* tokens;
  int32_t rows;
  const std::vector<RowRun>* runs;
  const int32_t* logits_rows;
  int32_t num_logits;
  float* logits;  // (num_logits, V)
  const std::vector<Tap>* taps = nullptr;
  // Tiles of the head that are multiplied, ascending; the logits of others are left as they are. Absent: all.
  std::optional<std::span<const int32_t>> head_tiles = std::nullopt;
};

// Shared by all ops of an executor; the arena is laid out once, for the largest step.
struct Machine {
  const KernelTable* kernels;
  ThreadPool* pool;
  KvStore* kv;
  std::vector<SlotMemory> slots;
  int32_t max_rows;
  std::atomic<int64_t> next_item = 0;  // work counter of the running op
};

// A matrix (rows, cols) as tiles; the memory belongs to the binding's caller.
struct Matrix {
  const WeightFormat* format;
  const LinearKernels* kernels;
  const uint8_t* tiles;
  int64_t tile_bytes;
  int64_t rows;
  int64_t cols;
  std::vector<float> bias;  // rows floats, or empty

  int64_t num_tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  const uint8_t* tile(int64_t index) const { return tiles + index * tile_bytes; }
};

class Op {
 public:
  virtual ~Op() = default;
  // Runs on every thread; a barrier follows.
  virtual void run(Machine& machine, const Step& step, int rank) = 0;
  // Bytes of scratch the op needs for `max_rows` rows; given back through set_scratch.
  virtual int64_t scratch_bytes(const Machine&) const { return 0; }
  virtual void set_scratch(uint8_t*) {}
};

// Fills the quantised form of columns [first, first + count) of a slot's row from its float form.
void quantize_slot(const Machine& machine, const SlotMemory& slot, int64_t row, int64_t first, int64_t count);

}  // namespace ellm
