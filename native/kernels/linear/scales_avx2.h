// Loading a group's scales from the planes described in {simple,super}_scales_scalar.h.
#pragma once

#include "kernels/linear/quantized_avx2.h"

namespace ellm {
namespace {

struct SimpleScales {
  static constexpr bool kHasMin = false;
  static constexpr bool kHalfGroups = false;
  static constexpr int kGroupScaleBytes = 32;
  static GroupScales scales(const uint8_t* plane, int64_t group) {
    const uint8_t* p = plane + group * 32;
    const __m256 none = _mm256_setzero_ps();
    return {{load_8_halves(p), load_8_halves(p + 16)}, {none, none}};
  }
};

struct SimpleScalesWithMin {
  static constexpr bool kHasMin = true;
  static constexpr bool kHalfGroups = false;
  static constexpr int kOffset = 0;
  static constexpr int kGroupScaleBytes = 64;
  static GroupScales scales(const uint8_t* plane, int64_t group) {
    const uint8_t* p = plane + group * 64;
    return {{load_8_halves(p), load_8_halves(p + 16)}, {load_8_halves(p + 32), load_8_halves(p + 48)}};
  }
};

inline __m256 bytes_to_floats(__m128i bytes) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)); }

struct SuperScales {
  static constexpr bool kHasMin = true;
  static constexpr bool kHalfGroups = false;
  static constexpr int kOffset = 0;
  static constexpr int kGroupScaleBytes = 32;
  static GroupScales scales(const uint8_t* plane, int64_t group) {
    const uint8_t* p = plane + group / 8 * 256;
    const int64_t part = group % 8;
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 64 + part * 16));
    const __m128i pairs = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 192 + part / 2 * 16));
    const __m128i high = _mm_srl_epi16(pairs, _mm_cvtsi32_si128(static_cast<int>(part % 2 * 4)));
    const __m128i scale = _mm_or_si128(_mm_and_si128(low, _mm_set1_epi8(15)),
                                       _mm_slli_epi16(_mm_and_si128(high, _mm_set1_epi8(3)), 4));
    const __m128i minimum = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(low, 4), _mm_set1_epi8(15)),
                                         _mm_slli_epi16(_mm_and_si128(high, _mm_set1_epi8(12)), 2));
    return {{_mm256_mul_ps(load_8_halves(p), bytes_to_floats(scale)),
             _mm256_mul_ps(load_8_halves(p + 16), bytes_to_floats(_mm_srli_si128(scale, 8)))},
            {_mm256_mul_ps(load_8_halves(p + 32), bytes_to_floats(minimum)),
             _mm256_mul_ps(load_8_halves(p + 48), bytes_to_floats(_mm_srli_si128(minimum, 8)))}};
  }
};

}  // namespace
}  // namespace ellm
