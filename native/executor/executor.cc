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
  int64_t scratch = 0;
  for (const SlotMemory& slot : machine_.slots) {
    bytes += round_up_to_line(config_.max_rows * slot.width * static_cast<int64_t>(sizeof(float)));
    if (slot.has_quantized) bytes += config_.max_rows * QuantizedRows::bytes_per_row(slot.width);
  }
  // Ops run one after another: one scratch, as large as the largest need.
  for (const auto& op : ops_) scratch = std::max(scratch, op->scratch_bytes(machine_));
  arena_ = Pages(static_cast<size_t>(bytes + scratch));
  uint8_t* next = arena_.data();
  for (SlotMemory& slot : machine_.slots) {
    slot.values = reinterpret_cast<float*>(next);
    next += round_up_to_line(config_.max_rows * slot.width * static_cast<int64_t>(sizeof(float)));
    if (!slot.has_quantized) continue;
    slot.quantized = next;
    next += config_.max_rows * QuantizedRows::bytes_per_row(slot.width);
  }
  for (const auto& op : ops_) op->set_scratch(next);
  op_times_.resize(ops_.size());
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

void Executor::start(const Step& step) {
  require(getpid() == owner_process_, "process using the executor", getpid(),
          std::to_string(owner_process_) + ", which made it: load the model after fork");
  check(step);
  for (const RowRun& run : *step.runs) {
    kv_.prepare(run.blocks, run.start, run.count);
    for (const auto& table : rope_tables_) table->fill(int64_t{run.start} + run.count);
  }
  stopped_ = false;
  abort_.store(false, std::memory_order_relaxed);
  machine_.next_item.store(0, std::memory_order_relaxed);
  op_start_ = Clock::now();
  pool_.start([this, step](int rank) {
    for (size_t i = 0; i < ops_.size(); ++i) {
      if (stopped_) return;
      ops_[i]->run(machine_, step, rank);
      pool_.barrier([this, i] {
        const Clock::time_point now = Clock::now();
        op_times_[i] = now - op_start_;
        op_start_ = now;
        machine_.next_item.store(0, std::memory_order_relaxed);
        stopped_ = abort_.load(std::memory_order_relaxed);
      });
    }
  });
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
  for (const Clock::duration time : op_times_) seconds.push_back(std::chrono::duration<double>(time).count());
  return seconds;
}

void Executor::finish_step() {
  if (stopped_) throw Error(ErrorKind::kAborted, "the step was stopped");
}

}  // namespace ellm
