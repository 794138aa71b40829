// Measures how fast this machine's memory can be read.
#pragma once

#include <cstddef>
#include <vector>

namespace ellm {

// 1e9 bytes per second that one thread on each of `cpus` reads together, best of the passes that fit
// in `seconds` (at least three). Reads `bytes` in all; above the last-level cache to mean memory.
double read_bandwidth_gb_per_s(const std::vector<int>& cpus, size_t bytes, double seconds);

}  // namespace ellm
