// Integer dot products of int8 KV: the twin that defines the sums. Layout in int8_layout.h.
//
// Each ISA has a file like this one with its own form of a query and of a block's weights:
//   KeyQuery       16-bit codes of a query; `prepare` makes it
//   ValueWeights   8-bit codes of one block's 64 probabilities; `put_weights` sets 16 of them
//   key_sums       for 16 tokens: sums[query] = sum over elements of code * query code, a lane a token
//   nibble_sums    for 16 tokens: sums[query] = sum over some octets' elements of upper four bits (0..15) *
//   int8
//                  query code
//   value_sums     for 16 * kVectors elements: sums[query][vector] = sum over 64 tokens of weight * code
// All sums fit 32 bits: 127 * 32639 * 512 elements, 255 * 127 * 64 tokens.
// Include after kernels/vector/scalar.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/attention/int8_layout.h"

namespace ellm {
namespace {

struct KeyQuery {
  int16_t codes[kMaxInt8HeadDim];
};
struct ValueWeights {
  uint8_t codes[kBlockTokens];
};

inline void prepare(const int16_t* codes, int dim, KeyQuery* query) {
  std::memcpy(query->codes, codes, static_cast<size_t>(dim) * sizeof *codes);
}
inline void put_weights(F32x16 codes, int token, ValueWeights* weights) {
  store_u8(weights->codes + token, codes);
}

template <int kQueries>
void key_sums(const uint8_t* high, const uint8_t* low, int dim, const KeyQuery* queries, const BlockPrefetch&,
              I32x16* sums) {
  for (int j = 0; j < kQueries; ++j) {
    for (int token = 0; token < 16; ++token) {
      int32_t sum = 0;
      for (int i = 0; i < dim; ++i) {
        const int64_t place = i / 8 * Int8Block::kOctet + 4 * token + i % 4;
        const int shift = i % 8 / 4 * 4;
        const int code = (high[place] >> shift & 15) << 4 | (low[place] >> shift & 15);
        sum += (code - 128) * queries[j].codes[i];
      }
      sums[j].lane[token] = sum;
    }
  }
}

// octets: which of them, `count`; queries[j] has their codes, eight each, one octet after another.
template <int kQueries, class Ahead>
void nibble_sums(const uint8_t* nibbles, const int32_t* octets, int count, const ScanQuery* queries,
                 const Ahead&, I32x16* sums) {
  for (int j = 0; j < kQueries; ++j) {
    for (int token = 0; token < 16; ++token) {
      int32_t sum = 0;
      for (int i = 0; i < count * 8; ++i) {
        const uint8_t both = nibbles[octets[i / 8] * Int8Block::kOctet + 4 * token + i % 4];
        sum += (both >> i % 8 / 4 * 4 & 15) * queries[j].codes[i];
      }
      sums[j].lane[token] = sum;
    }
  }
}

template <int kQueries, int kVectors>
void value_sums(const uint8_t* values, int dim, const ValueWeights* weights, I32x16 (*sums)[kVectors]) {
  for (int j = 0; j < kQueries; ++j) {
    for (int v = 0; v < kVectors; ++v) {
      for (int element = 0; element < 16; ++element) {
        int32_t sum = 0;
        for (int token = 0; token < kBlockTokens; ++token) {
          const int place = (token / 4 * (dim / 16) + v) * 64 + 4 * element + token % 4;
          sum += weights[j].codes[token] * static_cast<int8_t>(values[place]);
        }
        sums[j][v].lane[element] = sum;
      }
    }
  }
}

}  // namespace
}  // namespace ellm
