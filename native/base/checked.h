// Arithmetic on sizes from untrusted files: every result is right or absent, never wrapped.
#pragma once

#include <cstdint>
#include <optional>

namespace ellm {

inline std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  uint64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

inline std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
  uint64_t product;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// The smallest multiple of `alignment` (a power of two) that is not below `value`.
inline std::optional<uint64_t> checked_align_up(uint64_t value, uint64_t alignment) {
  const std::optional<uint64_t> raised = checked_add(value, alignment - 1);
  if (!raised) return std::nullopt;
  return *raised & ~(alignment - 1);
}

}  // namespace ellm
