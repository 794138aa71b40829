// Sixteen float lanes in two 256-bit registers; same names and same bits as scalar.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace ellm {
namespace {

struct F32x16 {
  __m256 lo, hi;
};

// 8 of 16 registers: the rest holds keys or values and a broadcast query.
inline constexpr int kAccumulators = 4;

inline F32x16 set1(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline F32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F32x16 v) {
  _mm256_storeu_ps(p, v.lo);
  _mm256_storeu_ps(p + 8, v.hi);
}
inline __m256i first_lanes(int64_t count, int first) {
  const __m256i index = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), index);
}
inline F32x16 load_first(const float* p, int64_t count) {
  return {_mm256_maskload_ps(p, first_lanes(count, 0)), _mm256_maskload_ps(p + 8, first_lanes(count, 8))};
}
inline void store_first(float* p, F32x16 v, int64_t count) {
  _mm256_maskstore_ps(p, first_lanes(count, 0), v.lo);
  _mm256_maskstore_ps(p + 8, first_lanes(count, 8), v.hi);
}
inline __m128i load_128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline F32x16 load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(load_128(p)), _mm256_cvtph_ps(load_128(p + 8))};
}
inline __m256 widen_bf16(__m128i halves) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
inline F32x16 load_bf16(const uint16_t* p) { return {widen_bf16(load_128(p)), widen_bf16(load_128(p + 8))}; }
inline F32x16 add(F32x16 a, F32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline F32x16 sub(F32x16 a, F32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline F32x16 mul(F32x16 a, F32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline F32x16 div(F32x16 a, F32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline F32x16 max(F32x16 a, F32x16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline F32x16 min(F32x16 a, F32x16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline F32x16 round_even(F32x16 a) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, kMode), _mm256_round_ps(a.hi, kMode)};
}
inline F32x16 zero_below(F32x16 x, float bound, F32x16 value) {
  const __m256 limit = _mm256_set1_ps(bound);
  return {_mm256_and_ps(_mm256_cmp_ps(x.lo, limit, _CMP_GE_OQ), value.lo),
          _mm256_and_ps(_mm256_cmp_ps(x.hi, limit, _CMP_GE_OQ), value.hi)};
}
inline __m256 pow2_half(__m256 n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
inline F32x16 pow2(F32x16 n) { return {pow2_half(n.lo), pow2_half(n.hi)}; }
inline __m256 mask_range_half(__m256 v, int32_t first, int32_t begin, int32_t end) {
  const __m256i index = _mm256_add_epi32(_mm256_set1_epi32(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(begin), index);
  const __m256i inside = _mm256_andnot_si256(below, _mm256_cmpgt_epi32(_mm256_set1_epi32(end), index));
  return _mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), v, _mm256_castsi256_ps(inside));
}
inline F32x16 mask_range(F32x16 v, int32_t first, int32_t begin, int32_t end) {
  return {mask_range_half(v.lo, first, begin, end), mask_range_half(v.hi, first + 8, begin, end)};
}
inline float reduce_add(F32x16 v) {
  const __m256 sum8 = _mm256_add_ps(v.lo, v.hi);
  const __m128 sum4 = _mm_add_ps(_mm256_castps256_ps128(sum8), _mm256_extractf128_ps(sum8, 1));
  const __m128 sum2 = _mm_add_ps(sum4, _mm_movehl_ps(sum4, sum4));
  return _mm_cvtss_f32(_mm_add_ss(sum2, _mm_shuffle_ps(sum2, sum2, 1)));
}
inline float reduce_max(F32x16 v) {
  const __m256 max8 = _mm256_max_ps(v.lo, v.hi);
  const __m128 max4 = _mm_max_ps(_mm256_castps256_ps128(max8), _mm256_extractf128_ps(max8, 1));
  const __m128 max2 = _mm_max_ps(max4, _mm_movehl_ps(max4, max4));
  return _mm_cvtss_f32(_mm_max_ss(max2, _mm_shuffle_ps(max2, max2, 1)));
}
inline void store_i8(int8_t* p, F32x16 v) {
  const __m256i lo = _mm256_cvtps_epi32(v.lo);
  const __m256i hi = _mm256_cvtps_epi32(v.hi);
  const __m128i words_lo = _mm_packs_epi32(_mm256_castsi256_si128(lo), _mm256_extracti128_si256(lo, 1));
  const __m128i words_hi = _mm_packs_epi32(_mm256_castsi256_si128(hi), _mm256_extracti128_si256(hi, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words_lo, words_hi));
}
inline void store_i16(int16_t* p, F32x16 v) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(v.lo), _mm256_cvtps_epi32(v.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(words, 0xD8));
}
inline __m128i narrow_f16(__m256 v) {
  // Operand order keeps a NaN a NaN, as scalar.h does.
  const __m256 clamped = _mm256_max_ps(_mm256_set1_ps(-65504.0f), _mm256_min_ps(_mm256_set1_ps(65504.0f), v));
  return _mm256_cvtps_ph(clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline void store_f16(uint16_t* p, F32x16 v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow_f16(v.lo));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), narrow_f16(v.hi));
}

struct I32x16 {
  __m256i lo, hi;
};

inline F32x16 to_float(I32x16 v) { return {_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)}; }
inline void store_u8(uint8_t* p, F32x16 v) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(v.lo), _mm256_cvtps_epi32(v.hi));
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xD8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packus_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
}

}  // namespace
}  // namespace ellm
