#include "platform/bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "platform/pages.h"
#include "threading/thread_pool.h"

namespace ellm {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Machines differ in what is best: near, or as far ahead as the weight kernels go.
constexpr size_t kPrefetchBytes[] = {4 << 10, 32 << 10};

uint64_t read_all(const uint8_t* data, size_t bytes, size_t ahead) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i + 64 <= bytes; i += 64) {
    __builtin_prefetch(data + i + ahead);
    for (size_t lane = 0; lane < 8; ++lane) {
      uint64_t word;
      std::memcpy(&word, data + i + 8 * lane, sizeof word);
      sums[lane] += word;
    }
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace

double read_bandwidth_gb_per_s(const std::vector<int>& cpus, size_t bytes, double seconds) {
  ThreadPool pool(cpus);
  const Pages pages(bytes);
  std::vector<uint64_t> sums(cpus.size());
  double best = 0;
  const auto pass = [&](auto body) {
    const Clock::time_point start = Clock::now();
    pool.start([&](int rank) {
      const Share share = share_of(static_cast<int64_t>(bytes / 64), rank, pool.size());
      body(rank, pages.data() + share.begin * 64, static_cast<size_t>(share.end - share.begin) * 64);
    });
    pool.wait();
    return seconds_since(start);
  };
  // Each thread touches its own share first, so that its pages are near it.
  pass([](int, uint8_t* data, size_t size) { std::memset(data, 1, size); });
  const Clock::time_point start = Clock::now();
  for (int passes = 0; passes < 4 || seconds_since(start) < seconds; ++passes) {
    const size_t ahead = kPrefetchBytes[passes % 2];
    const double took = pass([&](int rank, const uint8_t* data, size_t size) {
      sums[static_cast<size_t>(rank)] += read_all(data, size, ahead);
    });
    best = std::max(best, static_cast<double>(bytes) / took / 1e9);
  }
  // The sums leave the function, so the reads cannot be left out.
  return sums.empty() || sums[0] == 0 ? 0.0 : best;
}

}  // namespace ellm
