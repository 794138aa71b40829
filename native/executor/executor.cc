#include "executor/executor.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace ellm {
namespace {

int64_t round_up_to_line(int64_t bytes) { return (bytes + 63) / 64 * 64; }

void require(bool ok, const char* what, int64_t found, const std::string& expected) {
  if (!ok) throw Error(ErrorKind::kConfig, what, "", std::nullopt, std::to_string(found), expected);
}

std::string below(int64_t limit) { return "0.." + std::to_string(limit - 1); }

void check_head_tiles(std::span<const int32_t> tiles, int64_t vocab_size) {
  const int64_t end = (vocab_size + kTileRows - 1) / kTileRows;
  int64_t previous = -1;
  for (const int32_t tile : tiles) {
    require(tile >= 0 && tile < end, "tile of the head", tile, below(end));
    require(tile > previous, "tile of the head", tile, "above the one before it");
    previous = tile;
  }
}

}  // namespace

Executor::Executor(const ExecutorConfig& config, const std::vector<int64_t>& slot_widths)
    : config_(config), pool_(config.cpus), kv_(config.kv, config.num_blocks), owner_process_(getpid()) {
  machine_.kernels = &kernels_for(config.isa);
  machine_.pool = &pool_;
  machine_.kv = &kv_;
  machine_.max_rows = config.max_rows;
  machine_.slots.resize(slot_widths.size());
  for (size_t i = 0; i < slot_widths.size(); ++i) machine_.slots[i].width = slot_widths[i];
}

void Executor::require_quantized(int slot) {
  machine_.slots.at(static_cast<size_t>(slot)).has_quantized = true;
}

std::shared_ptr<const RopeTable> Executor::add_rope_table(std::vector<double> inverse_frequencies,
                                                          double magnitude, bool interleaved) {
  rope_tables_.push_back(std::make_shared<RopeTable>(std::move(inverse_frequencies), magnitude, interleaved,
                                                     config_.max_positions));
  return rope_tables_.back();
}

void Executor::finish() {
  int64_t bytes = 0;
  for (const SlotMemory& slot : machine_.slots) {
    bytes += round_up_to_line(config_.max_rows * slot.width * static_cast<int64_t>(sizeof(float)));
    if (slot.has_quantized) bytes += config_.max_rows * QuantizedRows::bytes_per_row(slot.width);
  }
  // Ops run one after another: one scratch, as large as the largest need.
  for (const auto& op : program_.own) scratch_bytes_ = std::max(scratch_bytes_, op->scratch_bytes(machine_));
  arena_ = Pages(static_cast<size_t>(bytes + scratch_bytes_));
  uint8_t* next = arena_.data();
  for (SlotMemory& slot : machine_.slots) {
    slot.values = reinterpret_cast<float*>(next);
    next += round_up_to_line(config_.max_rows * slot.width * static_cast<int64_t>(sizeof(float)));
    if (!slot.has_quantized) continue;
    slot.quantized = next;
    next += config_.max_rows * QuantizedRows::bytes_per_row(slot.width);
  }
  scratch_ = next;
  for (const auto& op : program_.own) {
    op->set_scratch(scratch_);
    program_.ops.push_back(op.get());
  }
  program_.times.resize(program_.ops.size());
}

int64_t Executor::arena_bytes() const {
  size_t bytes = arena_.size();
  for (const Pages& slot : exit_slots_) bytes += slot.size();
  return static_cast<int64_t>(bytes);
}

int Executor::add_slot(int64_t width) {
  SlotMemory slot;
  slot.width = width;
  const int64_t bytes = round_up_to_line(config_.max_rows * width * static_cast<int64_t>(sizeof(float)));
  slot.values = reinterpret_cast<float*>(exit_slots_.emplace_back(static_cast<size_t>(bytes)).data());
  machine_.slots.push_back(slot);
  return static_cast<int>(machine_.slots.size()) - 1;
}

void Executor::add_exit(size_t first_ops, std::vector<std::unique_ptr<Op>> own) {
  require(first_ops <= program_.ops.size(), "op to leave at", static_cast<int64_t>(first_ops),
          "at most " + std::to_string(program_.ops.size()));
  Way way = {std::move(own), {}, {}};
  way.ops.assign(program_.ops.begin(), program_.ops.begin() + static_cast<int64_t>(first_ops));
  for (const auto& op : way.own) {
    require(op->scratch_bytes(machine_) <= scratch_bytes_, "scratch of an exit", op->scratch_bytes(machine_),
            "at most " + std::to_string(scratch_bytes_));
    op->set_scratch(scratch_);
    way.ops.push_back(op.get());
  }
  way.times.resize(way.ops.size());
  exits_.insert_or_assign(first_ops, std::move(way));
}

Executor::Way& Executor::way_of(std::optional<size_t> exit) {
  if (!exit) return program_;
  const auto found = exits_.find(*exit);
  require(found != exits_.end(), "op to leave at", static_cast<int64_t>(*exit), "one that an exit is for");
  return found->second;
}

void Executor::check(const Step& step) const {
  require(step.rows >= 1 && step.rows <= config_.max_rows, "rows in the step", step.rows,
          "1.." + std::to_string(config_.max_rows));
  for (int32_t t = 0; t < step.rows; ++t) {
    require(step.tokens[t] >= 0 && step.tokens[t] < config_.vocab_size, "token id", step.tokens[t],
            below(config_.vocab_size));
  }
  for (int32_t i = 0; i < step.num_logits; ++i) {
    require(step.logits_rows[i] >= 0 && step.logits_rows[i] < step.rows, "row of logits", step.logits_rows[i],
            below(step.rows));
  }
  require(step.num_logits <= config_.max_rows, "rows of logits", step.num_logits,
          "at most " + std::to_string(config_.max_rows));
  if (step.head_tiles) check_head_tiles(*step.head_tiles, config_.vocab_size);
  int64_t rows = 0;
  for (const RowRun& run : *step.runs) {
    require(run.count >= 1, "rows of a sequence", run.count, "at least 1");
    require(run.start >= 0 && int64_t{run.start} + run.count <= config_.max_positions, "position of a row",
            int64_t{run.start} + run.count - 1, below(config_.max_positions));
    const int32_t blocks = (run.start + run.count + kBlockTokens - 1) / kBlockTokens;
    for (int32_t b = 0; b < blocks; ++b) {
      require(run.blocks[b] >= 0 && run.blocks[b] < config_.num_blocks, "KV block id", run.blocks[b],
              below(config_.num_blocks));
    }
    require(run.rule == nullptr || config_.kv.type == KvType::kInt8, "rows that choose their blocks",
            run.count, "none: the KV is not int8");
    rows += run.count;
  }
  require(rows == step.rows, "rows of all sequences", rows, std::to_string(step.rows));
}

void Executor::check_taps(const Step& step, const Way& way) const {
  if (step.taps == nullptr) return;
  const auto ops = static_cast<int64_t>(way.ops.size());
  const auto slots = static_cast<int64_t>(machine_.slots.size());
  for (const Tap& tap : *step.taps) {
    require(static_cast<int64_t>(tap.op) < ops, "op to look before", static_cast<int64_t>(tap.op),
            below(ops));
    require(tap.slot >= 0 && tap.slot < slots, "slot to look at", tap.slot, below(slots));
  }
}

void Executor::start(const Step& step, std::optional<size_t> exit) {
  require(getpid() == owner_process_, "process using the executor", getpid(),
          std::to_string(owner_process_) + ", which made it: load the model after fork");
  Way& way = way_of(exit);
  check(step);
  check_taps(step, way);
  for (const RowRun& run : *step.runs) {
    kv_.prepare(run.blocks, run.start, run.count);
    for (const auto& table : rope_tables_) table->fill(int64_t{run.start} + run.count);
  }
  stopped_ = false;
  abort_.store(false, std::memory_order_relaxed);
  machine_.next_item.store(0, std::memory_order_relaxed);
  last_way_ = &way;
  op_start_ = Clock::now();
  pool_.start([this, step, &way](int rank) { run(step, way, rank); });
}

void Executor::run(const Step& step, Way& way, int rank) {
  for (size_t i = 0; i < way.ops.size(); ++i) {
    if (stopped_) return;
    // The op may write what is being copied.
    if (copy_taps(step, i, rank)) pool_.barrier();
    way.ops[i]->run(machine_, step, rank);
    pool_.barrier([this, &way, i] {
      const Clock::time_point now = Clock::now();
      way.times[i] = now - op_start_;
      op_start_ = now;
      machine_.next_item.store(0, std::memory_order_relaxed);
      stopped_ = abort_.load(std::memory_order_relaxed);
    });
  }
}

// Returns whether there was something to copy before this op.
bool Executor::copy_taps(const Step& step, size_t op, int rank) const {
  if (step.taps == nullptr) return false;
  bool copied = false;
  const Share rows = share_of(step.rows, rank, pool_.size());
  for (const Tap& tap : *step.taps) {
    if (tap.op != op) continue;
    const SlotMemory& slot = machine_.slots[static_cast<size_t>(tap.slot)];
    std::copy(slot.row(rows.begin), slot.row(rows.end), tap.out + rows.begin * slot.width);
    copied = true;
  }
  return copied;
}

void Executor::forget(std::span<const int32_t> blocks) {
  for (const int32_t block : blocks) {
    require(block >= 0 && block < config_.num_blocks, "KV block id", block, below(config_.num_blocks));
    kv_.forget(block);
  }
}

void Executor::read_block(int32_t block, uint8_t* target) const {
  require(block >= 0 && block < config_.num_blocks, "KV block id", block, below(config_.num_blocks));
  kv_.copy_out(block, target);
}

void Executor::write_block(int32_t block, const uint8_t* source) {
  require(block >= 0 && block < config_.num_blocks, "KV block id", block, below(config_.num_blocks));
  kv_.copy_in(block, source);
}

std::vector<double> Executor::op_seconds() const {
  std::vector<double> seconds;
  for (const Clock::duration time : last_way_->times)
    seconds.push_back(std::chrono::duration<double>(time).count());
  return seconds;
}

void Executor::finish_step() {
  if (stopped_) throw Error(ErrorKind::kAborted, "the step was stopped");
}

}  // namespace ellm
