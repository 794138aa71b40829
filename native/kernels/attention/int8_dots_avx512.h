// int8_dots_scalar.h with VNNI: a query of 16 bits as two int8 terms, so that `vpdpbusd` takes it.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/attention/int8_layout.h"

namespace ellm {
namespace {

// code = 254 * coarse + fine
struct KeyQuery {
  int8_t coarse[kMaxInt8HeadDim];
  int8_t fine[kMaxInt8HeadDim];
  int32_t coarse_sum;
  int32_t fine_sum;
};
struct ValueWeights {
  uint8_t codes[kBlockTokens];
};

inline void prepare(const int16_t* codes, int dim, KeyQuery* query) {
  query->coarse_sum = 0;
  query->fine_sum = 0;
  for (int i = 0; i < dim; ++i) {
    const int coarse = (codes[i] + (codes[i] < 0 ? -127 : 127)) / 254;
    const int fine = codes[i] - 254 * coarse;
    query->coarse[i] = static_cast<int8_t>(coarse);
    query->fine[i] = static_cast<int8_t>(fine);
    query->coarse_sum += coarse;
    query->fine_sum += fine;
  }
}
inline void prepare(const uint8_t* codes, ValueWeights* weights) {
  std::memcpy(weights->codes, codes, kBlockTokens);
}

inline __m512i broadcast_quad(const void* p) {
  int32_t quad;
  std::memcpy(&quad, p, sizeof quad);
  return _mm512_set1_epi32(quad);
}
// 0xE4 selects bits of `high` where the mask (third operand) is set, else of `low`: a mux.
inline __m512i join_low_nibbles(__m512i high, __m512i low) {
  return _mm512_ternarylogic_epi32(_mm512_slli_epi16(high, 4), low, _mm512_set1_epi8(-16), 0xE4);
}
inline __m512i join_high_nibbles(__m512i high, __m512i low) {
  return _mm512_ternarylogic_epi32(high, _mm512_srli_epi16(low, 4), _mm512_set1_epi8(-16), 0xE4);
}

template <int kQueries>
void key_sums(const uint8_t* high, const uint8_t* low, int dim, const KeyQuery* queries,
              const BlockPrefetch& ahead, I32x16* sums) {
  __m512i coarse[kQueries];
  __m512i fine[kQueries];
  for (int j = 0; j < kQueries; ++j) {
    // Codes are stored 128 too high.
    coarse[j] = _mm512_set1_epi32(-128 * queries[j].coarse_sum);
    fine[j] = _mm512_set1_epi32(-128 * queries[j].fine_sum);
  }
  for (int i = 0; i < dim; i += 8) {
    const __m512i high_codes = _mm512_loadu_si512(high + i * 8);
    const __m512i low_codes = _mm512_loadu_si512(low + i * 8);
    const __m512i first = join_low_nibbles(high_codes, low_codes);
    const __m512i second = join_high_nibbles(high_codes, low_codes);
    ahead.lines(i, 0, 4);
    for (int j = 0; j < kQueries; ++j) {
      coarse[j] = _mm512_dpbusd_epi32(coarse[j], first, broadcast_quad(queries[j].coarse + i));
      coarse[j] = _mm512_dpbusd_epi32(coarse[j], second, broadcast_quad(queries[j].coarse + i + 4));
      fine[j] = _mm512_dpbusd_epi32(fine[j], first, broadcast_quad(queries[j].fine + i));
      fine[j] = _mm512_dpbusd_epi32(fine[j], second, broadcast_quad(queries[j].fine + i + 4));
    }
  }
  for (int j = 0; j < kQueries; ++j) {
    sums[j] = _mm512_add_epi32(_mm512_mullo_epi32(coarse[j], _mm512_set1_epi32(254)), fine[j]);
  }
}

// Keeps gcc from giving a sum a new register, or a place on the stack, in every turn of a loop.
inline void keep_in_place(__m512i& v) { asm volatile("" : "+v"(v)); }

template <int kQueries, int kVectors>
void value_sums(const uint8_t* values, int dim, const ValueWeights* weights, I32x16 (*sums)[kVectors]) {
  for (int j = 0; j < kQueries; ++j) {
    for (int v = 0; v < kVectors; ++v) sums[j][v] = _mm512_setzero_si512();
  }
  for (int quad = 0; quad < kBlockTokens / 4; ++quad) {
    __m512i value[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      value[v] = _mm512_loadu_si512(values + (int64_t{quad} * (dim / 16) + v) * 64);
    }
    for (int j = 0; j < kQueries; ++j) {
      const __m512i weight = broadcast_quad(weights[j].codes + quad * 4);
      for (int v = 0; v < kVectors; ++v) {
        sums[j][v] = _mm512_dpbusd_epi32(sums[j][v], weight, value[v]);
        keep_in_place(sums[j][v]);
      }
    }
  }
}

}  // namespace
}  // namespace ellm
