// Runs a recorded program: one call per step, all ops in lockstep on the pool.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ops/attention.h"
#include "ops/linear.h"
#include "ops/rows.h"
#include "ops/step.h"

namespace ellm {

struct ExecutorConfig {
  Isa isa;
  std::vector<int> cpus;  // one pinned thread each
  int32_t max_rows;
  int32_t max_positions;  // longest sequence
  KvShape kv;
  int64_t num_blocks;
  int64_t vocab_size;
};

class Executor {
 public:
  Executor(const ExecutorConfig& config, const std::vector<int64_t>& slot_widths);

  const ExecutorConfig& config() const { return config_; }
  Machine& machine() { return machine_; }

  // An int8 linear reads this slot: its writers keep a quantised form beside the float one.
  void require_quantized(int slot);
  // Kept filled as far as the rows of a step go.
  std::shared_ptr<const RopeTable> add_rope_table(std::vector<double> inverse_frequencies, double magnitude,
                                                  bool interleaved);
  void add(std::unique_ptr<Op> op) { program_.own.push_back(std::move(op)); }
  // Lays out the arena; no op can be added after.
  void finish();
  // A slot with memory of its own, for ops of exits; after `finish`. Not while a step runs.
  int add_slot(int64_t width);
  // Makes a shorter way through the program, in place of one that leaves at the same op: its ops before
  // `first_ops`, then `own`, which need no more scratch than those of the program do. Not while a step runs.
  void add_exit(size_t first_ops, std::vector<std::unique_ptr<Op>> own);
  // With the slots of exits.
  int64_t arena_bytes() const;
  int64_t kv_bytes() const { return kv_.total_bytes(); }
  int pinned_threads() const { return pool_.pinned(); }

  // Checks the step's numbers, starts it, and returns at once: all ops of the program, or those of the exit
  // that leaves it at op `exit`. Throws kConfig for numbers out of range.
  void start(const Step& step, std::optional<size_t> exit);
  // True when the step is over.
  bool wait_for(std::chrono::milliseconds limit) { return pool_.wait_for(limit); }
  // The sequences that used these KV blocks have ended. Not while a step runs.
  void forget(std::span<const int32_t> blocks);
  // A full KV block as stored, KvStore::block_bytes long, and back. Not while a step runs.
  void read_block(int32_t block, uint8_t* target) const;
  void write_block(int32_t block, const uint8_t* source);
  // Throws kAborted if the step was stopped before its end.
  void finish_step();
  // Seconds each op of the last step took, in the order they were added; not while a step runs.
  std::vector<double> op_seconds() const;
  // Ends the running step between two ops; the next step is not affected. Thread-safe.
  void abort() { abort_.store(true, std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;

  // What a step runs, in order: ops of its own, and those that it shares with the program.
  struct Way {
    std::vector<std::unique_ptr<Op>> own;
    std::vector<Op*> ops;
    std::vector<Clock::duration> times;  // of the last step
  };

  void check(const Step& step) const;
  void check_taps(const Step& step, const Way& way) const;
  Way& way_of(std::optional<size_t> exit);
  void run(const Step& step, Way& way, int rank);
  bool copy_taps(const Step& step, size_t op, int rank) const;

  ExecutorConfig config_;
  ThreadPool pool_;
  KvStore kv_;
  Machine machine_;
  std::vector<std::shared_ptr<RopeTable>> rope_tables_;
  Way program_;
  std::map<size_t, Way> exits_;  // by the op they leave at
  const Way* last_way_ = &program_;
  Clock::time_point op_start_;
  Pages arena_;
  int64_t scratch_bytes_ = 0;
  uint8_t* scratch_ = nullptr;
  std::vector<Pages> exit_slots_;
  std::atomic<bool> abort_ = false;
  bool stopped_ = false;
  int owner_process_;
};

}  // namespace ellm
