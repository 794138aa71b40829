// Loading 16 lanes of scales from the planes described in {simple,super}_scales_scalar.h.
#pragma once

#include "kernels/linear/quantized_avx512.h"

namespace ellm {
namespace {

struct SimpleScales {
  static constexpr bool kHasMin = false;
  static constexpr bool kHalfGroups = false;
  static constexpr int kGroupScaleBytes = 32;
  static GroupScales scales(const uint8_t* plane, int64_t group) {
    return {load_16_halves(plane + group * 32), _mm512_setzero_ps()};
  }
};

struct SimpleScalesWithMin {
  static constexpr bool kHasMin = true;
  static constexpr bool kHalfGroups = false;
  static constexpr int kOffset = 0;
  static constexpr int kGroupScaleBytes = 64;
  static GroupScales scales(const uint8_t* plane, int64_t group) {
    return {load_16_halves(plane + group * 64), load_16_halves(plane + group * 64 + 32)};
  }
};

inline __m512i load_16_bytes(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

struct SuperScales {
  static constexpr bool kHasMin = true;
  static constexpr bool kHalfGroups = false;
  static constexpr int kOffset = 0;
  static constexpr int kGroupScaleBytes = 32;
  static GroupScales scales(const uint8_t* plane, int64_t group) {
    const uint8_t* p = plane + group / 8 * 256;
    const int part = static_cast<int>(group % 8);
    const __m512i low = load_16_bytes(p + 64 + part * 16);
    const __m512i high =
        _mm512_srl_epi32(load_16_bytes(p + 192 + part / 2 * 16), _mm_cvtsi32_si128(part % 2 * 4));
    const __m512i scale = _mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi32(15)),
                                          _mm512_slli_epi32(_mm512_and_si512(high, _mm512_set1_epi32(3)), 4));
    const __m512i minimum = _mm512_or_si512(
        _mm512_srli_epi32(low, 4), _mm512_slli_epi32(_mm512_and_si512(high, _mm512_set1_epi32(12)), 2));
    return {_mm512_mul_ps(load_16_halves(p), _mm512_cvtepi32_ps(scale)),
            _mm512_mul_ps(load_16_halves(p + 32), _mm512_cvtepi32_ps(minimum))};
  }
};

}  // namespace
}  // namespace ellm
