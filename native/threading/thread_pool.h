// A pool of pinned threads that run one function together, in lockstep at barriers.
//
// The caller waits asleep: the allowed CPUs belong to the pool. Rejected: OpenMP, whose barriers
// sleep and whose synchronisation ThreadSanitizer does not see.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ellm {

class ThreadPool {
 public:
  // One thread per entry of `cpus`, pinned to it where the system allows.
  explicit ThreadPool(const std::vector<int>& cpus);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(threads_.size()); }
  // Threads that could be pinned.
  int pinned() const { return pinned_; }

  // Starts task(rank) on every thread; the previous task must be done.
  void start(std::function<void(int)> task);
  // True once every thread has returned from the task.
  bool wait_for(std::chrono::milliseconds limit);
  void wait();

  // Called by every thread of the running task; the last one runs `last` before any goes on.
  template <class Last>
  void barrier(Last last) {
    const uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
      last();
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      phase_.notify_all();
      return;
    }
    wait_while_equal(phase_, phase);
  }
  void barrier() {
    barrier([] {});
  }

 private:
  static void wait_while_equal(const std::atomic<uint32_t>& value, uint32_t old);
  void thread_main(int rank);

  // Each counter on its own cache line: sharing one cost llama.cpp a fifth on 80 cores (#9588).
  alignas(64) std::atomic<int> arrived_ = 0;
  alignas(64) std::atomic<uint32_t> phase_ = 0;
  alignas(64) std::atomic<uint32_t> generation_ = 0;
  alignas(64) std::atomic<int> running_ = 0;
  std::atomic<bool> stopping_ = false;
  int pinned_ = 0;
  std::function<void(int)> task_;
  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<std::thread> threads_;
};

// The contiguous share of `count` items that thread `rank` of `threads` works on.
struct Share {
  int64_t begin;
  int64_t end;
};
constexpr Share share_of(int64_t count, int rank, int threads) {
  return {count * rank / threads, count * (rank + 1) / threads};
}

}  // namespace ellm
