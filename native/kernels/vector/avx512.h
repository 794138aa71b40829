// Sixteen float lanes in one 512-bit register; same names and same bits as scalar.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace ellm {
namespace {

using F32x16 = __m512;

// Half of 32 registers.
inline constexpr int kAccumulators = 16;

inline F32x16 set1(float value) { return _mm512_set1_ps(value); }
inline F32x16 zero() { return _mm512_setzero_ps(); }
inline F32x16 load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F32x16 v) { _mm512_storeu_ps(p, v); }
inline __mmask16 first_lanes(int64_t count) { return static_cast<__mmask16>((1u << count) - 1u); }
inline F32x16 load_first(const float* p, int64_t count) {
  return _mm512_maskz_loadu_ps(first_lanes(count), p);
}
inline void store_first(float* p, F32x16 v, int64_t count) {
  _mm512_mask_storeu_ps(p, first_lanes(count), v);
}
inline F32x16 load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline F32x16 load_bf16(const uint16_t* p) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
inline F32x16 add(F32x16 a, F32x16 b) { return _mm512_add_ps(a, b); }
inline F32x16 sub(F32x16 a, F32x16 b) { return _mm512_sub_ps(a, b); }
inline F32x16 mul(F32x16 a, F32x16 b) { return _mm512_mul_ps(a, b); }
inline F32x16 div(F32x16 a, F32x16 b) { return _mm512_div_ps(a, b); }
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return _mm512_fmadd_ps(a, b, c); }
inline F32x16 max(F32x16 a, F32x16 b) { return _mm512_max_ps(a, b); }
inline F32x16 min(F32x16 a, F32x16 b) { return _mm512_min_ps(a, b); }
inline F32x16 round_even(F32x16 a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline F32x16 zero_below(F32x16 x, float bound, F32x16 value) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, set1(bound), _CMP_GE_OQ), value);
}
inline F32x16 pow2(F32x16 n) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
  return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
}
inline F32x16 mask_range(F32x16 v, int32_t first, int32_t begin, int32_t end) {
  const __m512i index = _mm512_add_epi32(
      _mm512_set1_epi32(first), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  const __mmask16 inside = _mm512_cmp_epi32_mask(index, _mm512_set1_epi32(begin), _MM_CMPINT_NLT) &
                           _mm512_cmp_epi32_mask(index, _mm512_set1_epi32(end), _MM_CMPINT_LT);
  return _mm512_mask_blend_ps(inside, set1(-__builtin_inff()), v);
}
inline float reduce_add(F32x16 v) {
  const __m256 high8 = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
  const __m256 sum8 = _mm256_add_ps(_mm512_castps512_ps256(v), high8);
  const __m128 sum4 = _mm_add_ps(_mm256_castps256_ps128(sum8), _mm256_extractf128_ps(sum8, 1));
  const __m128 sum2 = _mm_add_ps(sum4, _mm_movehl_ps(sum4, sum4));
  return _mm_cvtss_f32(_mm_add_ss(sum2, _mm_shuffle_ps(sum2, sum2, 1)));
}
inline float reduce_max(F32x16 v) { return _mm512_reduce_max_ps(v); }
inline void store_i8(int8_t* p, F32x16 v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v)));
}
inline void store_i16(int16_t* p, F32x16 v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(v)));
}
inline void store_f16(uint16_t* p, F32x16 v) {
  // min keeps a NaN only as its second operand; order chosen as in scalar.h: NaN stays NaN.
  const F32x16 largest = set1(65504.0f);
  const F32x16 clamped = _mm512_max_ps(set1(-65504.0f), _mm512_min_ps(largest, v));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

using I32x16 = __m512i;

inline F32x16 to_float(I32x16 v) { return _mm512_cvtepi32_ps(v); }
inline void store_u8(uint8_t* p, F32x16 v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(v)));
}

}  // namespace
}  // namespace ellm
