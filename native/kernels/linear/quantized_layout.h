// The tile of an integer weight format: planes of codes, then a plane of scales.
//
// Codes of 4, 5, 6 or 8 bits are unsigned. For every group of 32 columns, in quads of 4 columns
// (q = 0..7), byte b = lane * 4 + column % 4 of a 64-byte vector:
//
//   low plane    4 vectors a group; vector z holds quad 2z in its low nibbles, 2z+1 in the high ones
//                (8-bit codes: 8 vectors, vector q is quad q)
//   high plane   5-bit codes: 8 masks of 64 bits, bit b of mask q is bit 4 of quad q's byte b
//                6-bit codes: 2 vectors; vector h holds bits 4..5 of quads 4h..4h+3 at bit 0, 2, 4, 6
//   scales       the format's own bits, 16 lanes side by side (see each format's folder)
//
// No byte more per weight than the file has; only the tile's end is padded to 64 bytes.
// Rejected: scales beside their codes, which leaves half of the vector loads across a cache line.
#pragma once

#include <cstdint>

#include "kernels/weight_format.h"

namespace ellm {
namespace {

template <int kBits>
struct CodePlanes {
  static_assert(kBits == 4 || kBits == 5 || kBits == 6 || kBits == 8);
  static constexpr int64_t kLowBytes = kBits == 8 ? 512 : 256;                   // per group
  static constexpr int64_t kHighBytes = kBits == 5 ? 64 : kBits == 6 ? 128 : 0;  // per group

  static const uint8_t* low(const uint8_t* tile, int64_t group) { return tile + group * kLowBytes; }
  static const uint8_t* high(const uint8_t* tile, int64_t groups, int64_t group) {
    return tile + groups * kLowBytes + group * kHighBytes;
  }
  static const uint8_t* scales(const uint8_t* tile, int64_t groups) {
    return tile + groups * (kLowBytes + kHighBytes);
  }
};

// Asks for a group's share of the tile, codes and scales alike, further on: past the tile's end, of the
// next one. Decode reads every weight once; without this a core waits for memory. Into L2, where what is
// asked for early does not push the activations out of L1.
//
// One thread of a Zen 4 that reads 28 GB/s took, of Q4_K: codes alone, 24 KB ahead, into L1 13.4 GB/s (each
// tile's scales are a new place, where it waited); scales too 21.4, 16 KB ahead 23.6; into L2, 32 KB ahead
// 27.2, and with 4 rows 17.6 instead of 11.8.
constexpr int64_t kPrefetchBytes = 32 << 10;

template <int kBits>
inline void prefetch_group(const uint8_t* tile, int64_t group, int scale_bytes) {
  const int64_t share = CodePlanes<kBits>::kLowBytes + CodePlanes<kBits>::kHighBytes + scale_bytes;
  const uint8_t* first = tile + group * share + kPrefetchBytes;
  for (int64_t line = 0; line < share; line += 64) __builtin_prefetch(first + line, 0, 2);
}

constexpr int64_t round_up_to_line(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace
}  // namespace ellm
