// Integer formats on AVX2: the 16 lanes of a tile in two vectors, `vpmaddubsw` for the dot products.
//
// vpmaddubsw saturates at 16 bits: codes of up to 6 bits stay far below (63 * 127 * 2 = 16002); for
// 8-bit codes the sign moves to the activation, so a pair is at most 128 * 127 * 2 = 32512.
//
// The same loop runs on packed tiles and on expanded ones. Many activation rows share the work of
// expanding; a record of kExpandedGroupBytes per group of 32 columns then holds the codes as bytes
// (vector q is quad q, as in quantized_layout.h), d and m of its 16 lanes and the sum of its weights.
// A format `F` gives what quantized_avx512.h asks for, its scales for two vectors of 8 lanes:
//   scales(plane, group) -> {d, m}
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/linear/quantized_layout.h"

namespace ellm {
namespace {

struct GroupScales {
  __m256 d[2];
  __m256 m[2];  // minimum, or with kHalfGroups the scale of the second half
};

inline __m256i load_256(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m256 load_8_floats(const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
inline __m256 load_8_halves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// 16 in every byte whose bit is set.
inline __m256i bits_to_16(uint32_t bits) {
  const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i select = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
  const __m256i copies = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), spread);
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(copies, select), select);
  return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

// Codes of quads 2z and 2z+1 of one group for 8 lanes; 8-bit codes come back signed.
template <int kBits>
inline void unpack_quads(const uint8_t* low, const uint8_t* high, int z, int half, __m256i* even,
                         __m256i* odd) {
  if constexpr (kBits == 8) {
    const __m256i sign = _mm256_set1_epi8(-128);
    *even = _mm256_xor_si256(load_256(low + z * 128 + half * 32), sign);
    *odd = _mm256_xor_si256(load_256(low + z * 128 + 64 + half * 32), sign);
    return;
  }
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i packed = load_256(low + z * 64 + half * 32);
  *even = _mm256_and_si256(packed, nibble);
  *odd = _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble);
  if constexpr (kBits == 5) {
    uint32_t masks[2];
    std::memcpy(&masks[0], high + z * 16 + half * 4, 4);
    std::memcpy(&masks[1], high + z * 16 + 8 + half * 4, 4);
    *even = _mm256_or_si256(*even, bits_to_16(masks[0]));
    *odd = _mm256_or_si256(*odd, bits_to_16(masks[1]));
  }
  if constexpr (kBits == 6) {
    const __m256i bits = _mm256_set1_epi8(0x30);
    const __m256i top = load_256(high + z / 2 * 64 + half * 32);
    const __m256i even_bits = z % 2 == 0 ? _mm256_slli_epi16(top, 4) : top;
    const __m256i odd_bits = z % 2 == 0 ? _mm256_slli_epi16(top, 2) : _mm256_srli_epi16(top, 2);
    *even = _mm256_or_si256(*even, _mm256_and_si256(even_bits, bits));
    *odd = _mm256_or_si256(*odd, _mm256_and_si256(odd_bits, bits));
  }
}

inline __m256i broadcast_quad(const int8_t* q) {
  int32_t quad;
  std::memcpy(&quad, q, sizeof quad);
  return _mm256_set1_epi32(quad);
}

// Products of a quad of codes and activations, in pairs: 16 sums of 16 bits.
template <int kBits>
inline __m256i multiply_quad(__m256i codes, __m256i activations) {
  return kBits == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(activations, codes))
                    : _mm256_maddubs_epi16(codes, activations);
}

inline __m256i widen_pairs(__m256i sum, __m256i pairs) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

// Makes the compiler finish `v` before it goes on: gcc else puts additions off and spills their terms.
inline void compute_here(__m256i& v) { asm volatile("" : "+x"(v)); }

// The sum of a scale group's codes without their offset. Codes of up to 6 bits add up in bytes first
// (8 * 31 and 4 * 63 fit): one dot product with ones per scale group instead of one per quad.
template <class F>
class CodeSum {
 public:
  void add(__m256i even, __m256i odd) {
    if constexpr (F::kBits == 8) {
      const __m256i ones = _mm256_set1_epi8(1);
      sum_ =
          widen_pairs(widen_pairs(sum_, _mm256_maddubs_epi16(ones, even)), _mm256_maddubs_epi16(ones, odd));
    } else {
      sum_ = _mm256_add_epi8(sum_, _mm256_add_epi8(even, odd));
    }
  }
  // The sum, and a fresh start.
  __m256 take() {
    const __m256i total =
        F::kBits == 8 ? sum_ : widen_pairs(start(), _mm256_maddubs_epi16(sum_, _mm256_set1_epi8(1)));
    sum_ = _mm256_setzero_si256();
    return _mm256_cvtepi32_ps(total);
  }

 private:
  static __m256i start() { return _mm256_set1_epi32(-F::kOffset * (F::kHalfGroups ? 16 : 32)); }
  __m256i sum_ = _mm256_setzero_si256();
};

// A group of a packed tile: codes are unpacked and summed as they are used.
template <class F>
class PackedGroup {
 public:
  using Planes = CodePlanes<F::kBits>;
  PackedGroup(const uint8_t* tile, int64_t groups, int64_t group)
      : low_(Planes::low(tile, group)),
        high_(Planes::high(tile, groups, group)),
        scales_(F::scales(Planes::scales(tile, groups), group)) {
    prefetch_group<F::kBits>(tile, group, F::kGroupScaleBytes);
  }
  void quads(int z, __m256i* even, __m256i* odd) {
    for (int half = 0; half < 2; ++half) {
      unpack_quads<F::kBits>(low_, high_, z, half, &even[half], &odd[half]);
      code_sums_[half].add(even[half], odd[half]);
    }
  }
  // Scale of a scale group, whose codes have all been used.
  __m256 end_part(int part, int half) {
    const __m256 d = part == 0 ? scales_.d[half] : scales_.m[half];
    weight_sums_[half] = _mm256_fmadd_ps(d, code_sums_[half].take(), weight_sums_[half]);
    return d;
  }
  __m256 minimum(int half) const { return scales_.m[half]; }
  __m256 weight_sum(int half) const {
    if constexpr (F::kHasMin)
      return _mm256_fmadd_ps(scales_.m[half], _mm256_set1_ps(-32.0f), weight_sums_[half]);
    return weight_sums_[half];
  }

 private:
  const uint8_t* low_;
  const uint8_t* high_;
  GroupScales scales_;
  CodeSum<F> code_sums_[2];
  __m256 weight_sums_[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
};

class ExpandedGroup {
 public:
  ExpandedGroup(const uint8_t* tile, int64_t, int64_t group) : record_(tile + group * kExpandedGroupBytes) {}
  void quads(int z, __m256i* even, __m256i* odd) const {
    for (int half = 0; half < 2; ++half) {
      even[half] = load_256(record_ + z * 128 + half * 32);
      odd[half] = load_256(record_ + z * 128 + 64 + half * 32);
    }
  }
  __m256 end_part(int part, int half) const { return load_8_floats(record_ + 512 + part * 64 + half * 32); }
  __m256 minimum(int half) const { return load_8_floats(record_ + 576 + half * 32); }
  __m256 weight_sum(int half) const { return load_8_floats(record_ + 640 + half * 32); }

 private:
  const uint8_t* record_;
};

// Codes of up to 4 bits: eight pairs of products add up in 16 bits (8 * 2 * 15 * 127); else two at most.
template <int kBits, int kRows>
inline void add_products(const __m256i* even, const __m256i* odd, const int8_t* const* q, int64_t column,
                         __m256i (*sum)[2]) {
  if constexpr (kBits == 4) {
    for (int t = 0; t < kRows; ++t) {
      const __m256i quad = broadcast_quad(q[t] + column);
      for (int half = 0; half < 2; ++half) {
        sum[t][half] = _mm256_add_epi16(sum[t][half], multiply_quad<kBits>(even[half], quad));
        compute_here(sum[t][half]);
      }
    }
    for (int t = 0; t < kRows; ++t) {
      const __m256i quad = broadcast_quad(q[t] + column + 4);
      for (int half = 0; half < 2; ++half) {
        sum[t][half] = _mm256_add_epi16(sum[t][half], multiply_quad<kBits>(odd[half], quad));
        compute_here(sum[t][half]);
      }
    }
  } else {
    for (int t = 0; t < kRows; ++t) {
      const __m256i first = broadcast_quad(q[t] + column);
      const __m256i second = broadcast_quad(q[t] + column + 4);
      for (int half = 0; half < 2; ++half) {
        const __m256i a = multiply_quad<kBits>(even[half], first);
        const __m256i b = multiply_quad<kBits>(odd[half], second);
        sum[t][half] = kBits == 8 ? widen_pairs(widen_pairs(sum[t][half], a), b)
                                  : widen_pairs(sum[t][half], _mm256_add_epi16(a, b));
        compute_here(sum[t][half]);
      }
    }
  }
}

template <class F, class Group, int kRows>
void linear_rows(const LinearArgs& args, int first_row) {
  constexpr int kParts = F::kHalfGroups ? 2 : 1;
  const int64_t groups = args.cols / kGroup;
  const int8_t* q[kRows];
  const float* d[kRows];
  __m256 sum[kRows][2];
  for (int t = 0; t < kRows; ++t) {
    q[t] = reinterpret_cast<const int8_t*>(args.quantized.data + (first_row + t) * args.quantized.row_bytes);
    d[t] = reinterpret_cast<const float*>(q[t] + args.cols);
    sum[t][0] = sum[t][1] = _mm256_setzero_ps();
  }
  for (int64_t g = 0; g < groups; ++g) {
    Group group(args.tile, groups, g);
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      __m256i dot[kRows][2];
      for (int t = 0; t < kRows; ++t) dot[t][0] = dot[t][1] = _mm256_setzero_si256();
#pragma GCC unroll 4
      for (int z = 4 / kParts * part; z < 4 / kParts * (part + 1); ++z) {
        __m256i even[2], odd[2];
        group.quads(z, even, odd);
        add_products<F::kBits, kRows>(even, odd, q, g * kGroup + z * 8, dot);
      }
      const __m256 scale[2] = {group.end_part(part, 0), group.end_part(part, 1)};
      for (int t = 0; t < kRows; ++t) {
        const __m256 activation_scale = _mm256_set1_ps(d[t][g]);
        for (int half = 0; half < 2; ++half) {
          __m256i total = F::kBits == 4 ? widen_pairs(_mm256_setzero_si256(), dot[t][half]) : dot[t][half];
          if constexpr (F::kOffset != 0 && F::kBits != 8) {
            // Minus the sum of the activations, once per scale group.
            const int32_t* negative = reinterpret_cast<const int32_t*>(d[t] + 3 * groups);
            const int32_t start = F::kHalfGroups ? negative[groups + 2 * g + part] : negative[g];
            total = _mm256_add_epi32(total, _mm256_set1_epi32(start * F::kOffset));
          }
          sum[t][half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total),
                                         _mm256_mul_ps(scale[half], activation_scale), sum[t][half]);
        }
      }
    }
    for (int t = 0; t < kRows; ++t) {
      const __m256 centre = _mm256_set1_ps(d[t][groups + g]);
      const __m256 scaled_sum = _mm256_set1_ps(F::kHasMin ? d[t][2 * groups + g] : 0.0f);
      for (int half = 0; half < 2; ++half) {
        if constexpr (F::kHasMin) {
          sum[t][half] = _mm256_fnmadd_ps(group.minimum(half), scaled_sum, sum[t][half]);
        }
        sum[t][half] = _mm256_fmadd_ps(group.weight_sum(half), centre, sum[t][half]);
      }
    }
  }
  for (int t = 0; t < kRows; ++t) {
    float* const out = args.out + (first_row + t) * args.out_stride;
    _mm256_storeu_ps(out, sum[t][0]);
    _mm256_storeu_ps(out + 8, sum[t][1]);
  }
}

// Four activation rows at a time: their integer sums fill half of the registers.
template <class F, class Group>
void quantized_linear(const LinearArgs& args) {
  for (int first = 0; first < args.rows; first += 4) {
    switch (args.rows - first) {
      case 1: linear_rows<F, Group, 1>(args, first); break;
      case 2: linear_rows<F, Group, 2>(args, first); break;
      case 3: linear_rows<F, Group, 3>(args, first); break;
      default: linear_rows<F, Group, 4>(args, first); break;
    }
  }
}

template <class F>
void expand_tile(const uint8_t* tile, int64_t cols, uint8_t* out) {
  constexpr int kParts = F::kHalfGroups ? 2 : 1;
  const int64_t groups = cols / kGroup;
  for (int64_t g = 0; g < groups; ++g) {
    PackedGroup<F> group(tile, groups, g);
    uint8_t* const record = out + g * kExpandedGroupBytes;
    const auto store_floats = [&](int place, int half, __m256 v) {
      _mm256_storeu_ps(reinterpret_cast<float*>(record + 512 + place * 64 + half * 32), v);
    };
    for (int part = 0; part < kParts; ++part) {
      for (int z = 4 / kParts * part; z < 4 / kParts * (part + 1); ++z) {
        __m256i even[2], odd[2];
        group.quads(z, even, odd);
        for (int half = 0; half < 2; ++half) {
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(record + z * 128 + half * 32), even[half]);
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(record + z * 128 + 64 + half * 32), odd[half]);
        }
      }
      for (int half = 0; half < 2; ++half) store_floats(part, half, group.end_part(part, half));
    }
    for (int half = 0; half < 2; ++half) {
      if constexpr (F::kHasMin) store_floats(1, half, group.minimum(half));
      store_floats(2, half, group.weight_sum(half));
    }
  }
}

template <class F>
constexpr LinearKernels quantized_kernels() {
  return {quantized_linear<F, PackedGroup<F>>, expand_tile<F>, quantized_linear<F, ExpandedGroup>};
}

}  // namespace
}  // namespace ellm
