// int8_dots_scalar.h on AVX2: codes widened to 16 bits once for all queries, `vpmaddwd` for the products.
//
// vpmaddubsw would saturate for bytes over 127. Bytes 0 and 2 of a lane's quad meet one vector, 1 and 3
// another, so queries and weights keep their codes in pairs (0, 2), (1, 3).
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/attention/int8_layout.h"

namespace ellm {
namespace {

struct KeyQuery {
  int16_t pairs[kMaxInt8HeadDim];
  int32_t sum;
};
struct ValueWeights {
  int16_t pairs[kBlockTokens];
};

// (0, 1, 2, 3) of every quad as (0, 2), (1, 3).
inline __m256i to_pairs(__m256i words) {
  return _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xD8), 0xD8);
}

inline void prepare(const int16_t* codes, int dim, KeyQuery* query) {
  int32_t sum = 0;
  for (int i = 0; i < dim; i += 16) {
    const __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(query->pairs + i), to_pairs(code));
    for (int j = 0; j < 16; ++j) sum += codes[i + j];
  }
  query->sum = sum;
}
inline void put_weights(F32x16 codes, int token, ValueWeights* weights) {
  const __m256i halves = _mm256_packs_epi32(_mm256_cvtps_epi32(codes.lo), _mm256_cvtps_epi32(codes.hi));
  const __m256i words = _mm256_permute4x64_epi64(halves, 0xD8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights->pairs + token), to_pairs(words));
}

inline __m256i load_256(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m256i broadcast_pair(const int16_t* p) {
  int32_t pair;
  std::memcpy(&pair, p, sizeof pair);
  return _mm256_set1_epi32(pair);
}
inline __m256i add_products(__m256i sum, __m256i codes, const int16_t* pair) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(codes, broadcast_pair(pair)));
}

// Eight tokens. The sums may wrap on the way: what they start with brings them back into range.
template <int kQueries, class Ahead>
inline void key_sums_half(const uint8_t* high, const uint8_t* low, int dim, const KeyQuery* queries,
                          Ahead ahead, __m256i* sums) {
  // Codes are stored 128 too high.
  for (int j = 0; j < kQueries; ++j) sums[j] = _mm256_set1_epi32(-128 * queries[j].sum);
  const __m256i low_nibbles = _mm256_set1_epi8(15);
  const __m256i low_bytes = _mm256_set1_epi16(255);
  for (int i = 0; i < dim; i += 8) {
    const __m256i high_codes = load_256(high + i / 8 * Int8Block::kOctet);
    const __m256i low_codes = load_256(low + i / 8 * Int8Block::kOctet);
    ahead(i);
    const __m256i first = _mm256_or_si256(_mm256_slli_epi16(_mm256_and_si256(high_codes, low_nibbles), 4),
                                          _mm256_and_si256(low_codes, low_nibbles));
    const __m256i second = _mm256_or_si256(_mm256_andnot_si256(low_nibbles, high_codes),
                                           _mm256_and_si256(_mm256_srli_epi16(low_codes, 4), low_nibbles));
    const __m256i codes[4] = {_mm256_and_si256(first, low_bytes), _mm256_srli_epi16(first, 8),
                              _mm256_and_si256(second, low_bytes), _mm256_srli_epi16(second, 8)};
    for (int j = 0; j < kQueries; ++j) {
      for (int part = 0; part < 4; ++part) {
        sums[j] = add_products(sums[j], codes[part], queries[j].pairs + i + 2 * part);
      }
    }
  }
}

template <int kQueries>
void key_sums(const uint8_t* high, const uint8_t* low, int dim, const KeyQuery* queries,
              const BlockPrefetch& ahead, I32x16* sums) {
  __m256i half[kQueries];
  key_sums_half<kQueries>(high, low, dim, queries, [&](int i) { ahead.lines(i, 0, 2); }, half);
  for (int j = 0; j < kQueries; ++j) sums[j].lo = half[j];
  key_sums_half<kQueries>(high + 32, low + 32, dim, queries, [&](int i) { ahead.lines(i, 2, 4); }, half);
  for (int j = 0; j < kQueries; ++j) sums[j].hi = half[j];
}

inline __m256i broadcast_quad(const int8_t* p) {
  int32_t quad;
  std::memcpy(&quad, p, sizeof quad);
  return _mm256_set1_epi32(quad);
}

// Eight tokens. Four octets add up in 16 bits: 8 products of pairs, 15 * 127 * 2 each.
template <int kQueries, class Ahead>
inline void nibble_sums_half(const uint8_t* nibbles, const int32_t* octets, int count,
                             const ScanQuery* queries, Ahead ahead, __m256i* sums) {
  const __m256i low_nibbles = _mm256_set1_epi8(15);
  const __m256i ones = _mm256_set1_epi16(1);
  for (int j = 0; j < kQueries; ++j) sums[j] = _mm256_setzero_si256();
  for (int c = 0; c < count; c += 4) {
    __m256i pairs[kQueries];
    for (int j = 0; j < kQueries; ++j) pairs[j] = _mm256_setzero_si256();
    for (int o = c; o < c + 4 && o < count; ++o) {
      const __m256i both = load_256(nibbles + octets[o] * Int8Block::kOctet);
      const __m256i first = _mm256_and_si256(both, low_nibbles);
      const __m256i second = _mm256_and_si256(_mm256_srli_epi16(both, 4), low_nibbles);
      ahead(octets[o]);
      for (int j = 0; j < kQueries; ++j) {
        const int8_t* codes = queries[j].codes + o * 8;
        pairs[j] = _mm256_add_epi16(pairs[j], _mm256_maddubs_epi16(first, broadcast_quad(codes)));
        pairs[j] = _mm256_add_epi16(pairs[j], _mm256_maddubs_epi16(second, broadcast_quad(codes + 4)));
      }
    }
    for (int j = 0; j < kQueries; ++j) sums[j] = _mm256_add_epi32(sums[j], _mm256_madd_epi16(pairs[j], ones));
  }
}

template <int kQueries, class Ahead>
void nibble_sums(const uint8_t* nibbles, const int32_t* octets, int count, const ScanQuery* queries,
                 const Ahead& ahead, I32x16* sums) {
  __m256i half[kQueries];
  nibble_sums_half<kQueries>(nibbles, octets, count, queries, ahead, half);
  for (int j = 0; j < kQueries; ++j) sums[j].lo = half[j];
  nibble_sums_half<kQueries>(nibbles + 32, octets, count, queries, [](int32_t) {}, half);
  for (int j = 0; j < kQueries; ++j) sums[j].hi = half[j];
}

// Eight elements.
template <int kQueries>
inline void value_sums_half(const uint8_t* values, int dim, const ValueWeights* weights, __m256i* sums) {
  for (int j = 0; j < kQueries; ++j) sums[j] = _mm256_setzero_si256();
  for (int quad = 0; quad < kBlockTokens / 4; ++quad) {
    const __m256i codes = load_256(values + int64_t{quad} * dim * 4);
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 8);
    const __m256i odd = _mm256_srai_epi16(codes, 8);
    for (int j = 0; j < kQueries; ++j) {
      sums[j] = add_products(sums[j], even, weights[j].pairs + quad * 4);
      sums[j] = add_products(sums[j], odd, weights[j].pairs + quad * 4 + 2);
    }
  }
}

template <int kQueries, int kVectors>
void value_sums(const uint8_t* values, int dim, const ValueWeights* weights, I32x16 (*sums)[kVectors]) {
  for (int v = 0; v < kVectors; ++v) {
    __m256i half[kQueries];
    value_sums_half<kQueries>(values + v * 64, dim, weights, half);
    for (int j = 0; j < kQueries; ++j) sums[j][v].lo = half[j];
    value_sums_half<kQueries>(values + v * 64 + 32, dim, weights, half);
    for (int j = 0; j < kQueries; ++j) sums[j][v].hi = half[j];
  }
}

}  // namespace
}  // namespace ellm
