// Loading 8 lanes of scales from the planes described in {simple,super}_scales_scalar.h.
#pragma once

#include "kernels/linear/quantized_avx2.h"

namespace ellm {
namespace {

struct SimpleScales {
  static constexpr bool kHasMin = false;
  static constexpr bool kHalfGroups = false;
  static GroupScales scales(const uint8_t* plane, int64_t group, int half) {
    return {load_8_halves(plane + group * 32 + half * 16), _mm256_setzero_ps()};
  }
};

struct SimpleScalesWithMin {
  static constexpr bool kHasMin = true;
  static constexpr bool kHalfGroups = false;
  static constexpr int kOffset = 0;
  static GroupScales scales(const uint8_t* plane, int64_t group, int half) {
    const uint8_t* p = plane + group * 64 + half * 16;
    return {load_8_halves(p), load_8_halves(p + 32)};
  }
};

inline __m256i load_8_bytes(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

struct SuperScales {
  static constexpr bool kHasMin = true;
  static constexpr bool kHalfGroups = false;
  static constexpr int kOffset = 0;
  static GroupScales scales(const uint8_t* plane, int64_t group, int half) {
    const uint8_t* p = plane + group / 8 * 256;
    const int part = static_cast<int>(group % 8);
    const __m256i low = load_8_bytes(p + 64 + part * 16 + half * 8);
    const __m256i high =
        _mm256_srl_epi32(load_8_bytes(p + 192 + part / 2 * 16 + half * 8), _mm_cvtsi32_si128(part % 2 * 4));
    const __m256i scale = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(15)),
                                          _mm256_slli_epi32(_mm256_and_si256(high, _mm256_set1_epi32(3)), 4));
    const __m256i minimum = _mm256_or_si256(
        _mm256_srli_epi32(low, 4), _mm256_slli_epi32(_mm256_and_si256(high, _mm256_set1_epi32(12)), 2));
    return {_mm256_mul_ps(load_8_halves(p + half * 16), _mm256_cvtepi32_ps(scale)),
            _mm256_mul_ps(load_8_halves(p + 32 + half * 16), _mm256_cvtepi32_ps(minimum))};
  }
};

}  // namespace
}  // namespace ellm
