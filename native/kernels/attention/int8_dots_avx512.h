// int8_dots_scalar.h with VNNI: a query of 16 bits as two int8 terms, so that `vpdpbusd` takes it.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/attention/int8_layout.h"

namespace ellm {
namespace {

// code = 256 * high + low
struct KeyQuery {
  int8_t high[kMaxInt8HeadDim];
  int8_t low[kMaxInt8HeadDim];
  int32_t sum;
};
struct ValueWeights {
  uint8_t codes[kBlockTokens];
};

inline void prepare(const int16_t* codes, int dim, KeyQuery* query) {
  __m256i pair_sums = _mm256_setzero_si256();
  for (int i = 0; i < dim; i += 16) {
    const __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
    const auto put = [&](int8_t* bytes, __m256i words) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + i), _mm256_cvtepi16_epi8(words));
    };
    put(query->high, _mm256_srai_epi16(_mm256_add_epi16(code, _mm256_set1_epi16(128)), 8));
    put(query->low, code);
    pair_sums = _mm256_add_epi32(pair_sums, _mm256_madd_epi16(code, _mm256_set1_epi16(1)));
  }
  query->sum = _mm512_reduce_add_epi32(_mm512_zextsi256_si512(pair_sums));
}
inline void put_weights(F32x16 codes, int token, ValueWeights* weights) {
  store_u8(weights->codes + token, codes);
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
  __m512i high_sums[kQueries];
  __m512i low_sums[kQueries];
  for (int j = 0; j < kQueries; ++j) {
    // Codes are stored 128 too high.
    high_sums[j] = _mm512_setzero_si512();
    low_sums[j] = _mm512_set1_epi32(-128 * queries[j].sum);
  }
  for (int i = 0; i < dim; i += 8) {
    const __m512i high_codes = _mm512_loadu_si512(high + i / 8 * Int8Block::kOctet);
    const __m512i low_codes = _mm512_loadu_si512(low + i / 8 * Int8Block::kOctet);
    const __m512i first = join_low_nibbles(high_codes, low_codes);
    const __m512i second = join_high_nibbles(high_codes, low_codes);
    ahead.lines(i, 0, 4);
    for (int j = 0; j < kQueries; ++j) {
      high_sums[j] = _mm512_dpbusd_epi32(high_sums[j], first, broadcast_quad(queries[j].high + i));
      high_sums[j] = _mm512_dpbusd_epi32(high_sums[j], second, broadcast_quad(queries[j].high + i + 4));
      low_sums[j] = _mm512_dpbusd_epi32(low_sums[j], first, broadcast_quad(queries[j].low + i));
      low_sums[j] = _mm512_dpbusd_epi32(low_sums[j], second, broadcast_quad(queries[j].low + i + 4));
    }
  }
  for (int j = 0; j < kQueries; ++j) {
    sums[j] = _mm512_add_epi32(_mm512_slli_epi32(high_sums[j], 8), low_sums[j]);
  }
}

template <int kQueries, class Ahead>
void nibble_sums(const uint8_t* nibbles, const int32_t* octets, int count, const ScanQuery* queries,
                 const Ahead& ahead, I32x16* sums) {
  const __m512i low_nibbles = _mm512_set1_epi8(15);
  for (int j = 0; j < kQueries; ++j) sums[j] = _mm512_setzero_si512();
  for (int o = 0; o < count; ++o) {
    const __m512i both = _mm512_loadu_si512(nibbles + octets[o] * Int8Block::kOctet);
    const __m512i first = _mm512_and_si512(both, low_nibbles);
    const __m512i second = _mm512_and_si512(_mm512_srli_epi16(both, 4), low_nibbles);
    ahead(octets[o]);
    for (int j = 0; j < kQueries; ++j) {
      sums[j] = _mm512_dpbusd_epi32(sums[j], first, broadcast_quad(queries[j].codes + o * 8));
      sums[j] = _mm512_dpbusd_epi32(sums[j], second, broadcast_quad(queries[j].codes + o * 8 + 4));
    }
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
