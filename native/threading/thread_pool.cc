#include "threading/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <utility>

namespace ellm {
namespace {

// About 100 us on current cores: longer than the spread of one op, shorter than a time slice.
constexpr int kSpins = 2000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool pin(std::thread& thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  return pthread_setaffinity_np(thread.native_handle(), sizeof set, &set) == 0;
}

}  // namespace

ThreadPool::ThreadPool(const std::vector<int>& cpus) {
  threads_.reserve(cpus.size());
  // Threads read threads_.size() only once a task runs, when the vector is complete.
  for (size_t rank = 0; rank < cpus.size(); ++rank) {
    threads_.emplace_back([this, rank] { thread_main(static_cast<int>(rank)); });
    if (pin(threads_.back(), cpus[rank])) ++pinned_;
  }
}

ThreadPool::~ThreadPool() {
  wait();
  stopping_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::start(std::function<void(int)> task) {
  task_ = std::move(task);
  running_.store(size(), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
}

bool ThreadPool::wait_for(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return done_.wait_for(lock, limit, [this] { return running_.load(std::memory_order_acquire) == 0; });
}

void ThreadPool::wait() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return running_.load(std::memory_order_acquire) == 0; });
}

void ThreadPool::wait_while_equal(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  value.wait(old, std::memory_order_acquire);
}

void ThreadPool::thread_main(int rank) {
  uint32_t seen = 0;
  while (true) {
    wait_while_equal(generation_, seen);
    ++seen;
    if (stopping_.load(std::memory_order_relaxed)) return;
    task_(rank);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      // Under the lock, or a waiter between its check and its sleep would miss the signal.
      const std::lock_guard lock(mutex_);
      done_.notify_all();
    }
  }
}

}  // namespace ellm
