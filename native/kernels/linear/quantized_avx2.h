// Integer formats on AVX2: a tile in two halves of 8 rows, `vpmaddubsw` for the dot products.
//
// vpmaddubsw saturates at 16 bits: codes of up to 6 bits stay far below (63 * 127 * 2 = 16002); for
// 8-bit codes the sign moves to the activation, so a pair is at most 128 * 127 * 2 = 32512.
// A format `F` gives what quantized_avx512.h asks for, its scales for 8 lanes:
//   scales(plane, group, half) -> {d, m}
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/linear/quantized_layout.h"

namespace ellm {
namespace {

struct GroupScales {
  __m256 d;
  __m256 m;  // minimum, or with kHalfGroups the scale of the second half
};

inline __m256i load_256(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
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

template <int kBits>
inline __m256i dot_quads(__m256i sum, __m256i codes, const int8_t* q) {
  int32_t quad;
  std::memcpy(&quad, q, sizeof quad);
  const __m256i activations = _mm256_set1_epi32(quad);
  const __m256i pairs =
      kBits == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(activations, codes))
                 : _mm256_maddubs_epi16(codes, activations);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

template <class F>
inline __m256i offset_start(const int32_t* negative_sum) {
  if constexpr (F::kOffset == 0 || F::kBits == 8) return _mm256_setzero_si256();
  return _mm256_set1_epi32(*negative_sum * F::kOffset);
}

constexpr int8_t kOnes[4] = {1, 1, 1, 1};

// The sum of a scale group's codes without their offset. Codes of up to 6 bits add up in bytes first
// (8 * 31 and 4 * 63 fit): one dot product with ones per scale group instead of one per quad.
template <class F>
class CodeSum {
 public:
  void add(__m256i even, __m256i odd) {
    if constexpr (F::kBits == 8) {
      sum_ = dot_quads<8>(dot_quads<8>(sum_, even, kOnes), odd, kOnes);
    } else {
      sum_ = _mm256_add_epi8(sum_, _mm256_add_epi8(even, odd));
    }
  }
  // The sum, and a fresh start.
  __m256i take() {
    const __m256i total = F::kBits == 8 ? sum_ : dot_quads<F::kBits>(start(), sum_, kOnes);
    sum_ = _mm256_setzero_si256();
    return total;
  }

 private:
  static __m256i start() { return _mm256_set1_epi32(-F::kOffset * (F::kHalfGroups ? 16 : 32)); }
  __m256i sum_ = _mm256_setzero_si256();
};

template <class F, int kRows>
void linear_half_tile(const LinearArgs& args, int half, int first_row) {
  using Planes = CodePlanes<F::kBits>;
  const int64_t groups = args.cols / kGroup;
  const uint8_t* scale_plane = Planes::scales(args.tile, groups);
  const int8_t* q[kRows];
  const float* d[kRows];
  __m256 sum[kRows];
  for (int t = 0; t < kRows; ++t) {
    q[t] = reinterpret_cast<const int8_t*>(args.quantized.data + (first_row + t) * args.quantized.row_bytes);
    d[t] = reinterpret_cast<const float*>(q[t] + args.cols);
    sum[t] = _mm256_setzero_ps();
  }
  const auto negative_sums = [&](int t) { return reinterpret_cast<const int32_t*>(d[t] + 3 * groups); };
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t* low = Planes::low(args.tile, g);
    const uint8_t* high = Planes::high(args.tile, groups, g);
    if (half == 0) prefetch_group<F::kBits>(low, high);
    const GroupScales scales = F::scales(scale_plane, g, half);
    __m256i dot[kRows];
    for (int t = 0; t < kRows; ++t) {
      dot[t] = offset_start<F>(F::kHalfGroups ? negative_sums(t) + groups + 2 * g : negative_sums(t) + g);
    }
    CodeSum<F> code_sum;
    __m256 weight_sum = _mm256_setzero_ps();
    for (int z = 0; z < 4; ++z) {
      __m256i even, odd;
      unpack_quads<F::kBits>(low, high, z, half, &even, &odd);
      for (int t = 0; t < kRows; ++t) {
        dot[t] = dot_quads<F::kBits>(dot[t], even, q[t] + g * kGroup + z * 8);
        dot[t] = dot_quads<F::kBits>(dot[t], odd, q[t] + g * kGroup + z * 8 + 4);
      }
      code_sum.add(even, odd);
      if (F::kHalfGroups && z == 1) {
        weight_sum = _mm256_mul_ps(scales.d, _mm256_cvtepi32_ps(code_sum.take()));
        for (int t = 0; t < kRows; ++t) {
          const __m256 scale = _mm256_mul_ps(scales.d, _mm256_set1_ps(d[t][g]));
          sum[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[t]), scale, sum[t]);
          dot[t] = offset_start<F>(negative_sums(t) + groups + 2 * g + 1);
        }
      }
    }
    weight_sum = _mm256_fmadd_ps(F::kHalfGroups ? scales.m : scales.d, _mm256_cvtepi32_ps(code_sum.take()),
                                 weight_sum);
    if constexpr (F::kHasMin) weight_sum = _mm256_fmadd_ps(scales.m, _mm256_set1_ps(-32.0f), weight_sum);
    for (int t = 0; t < kRows; ++t) {
      const __m256 last = F::kHalfGroups ? scales.m : scales.d;
      const __m256 scale = _mm256_mul_ps(last, _mm256_set1_ps(d[t][g]));
      sum[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[t]), scale, sum[t]);
      if constexpr (F::kHasMin) {
        sum[t] = _mm256_fnmadd_ps(scales.m, _mm256_set1_ps(d[t][2 * groups + g]), sum[t]);
      }
      sum[t] = _mm256_fmadd_ps(weight_sum, _mm256_set1_ps(d[t][groups + g]), sum[t]);
    }
  }
  for (int t = 0; t < kRows; ++t) {
    _mm256_storeu_ps(args.out + (first_row + t) * args.out_stride + half * 8, sum[t]);
  }
}

// Four activation rows at a time: 4 integer and 4 float sums leave registers for unpacking.
template <class F>
void quantized_linear(const LinearArgs& args) {
  for (int half = 0; half < 2; ++half) {
    for (int first = 0; first < args.rows; first += 4) {
      switch (args.rows - first) {
        case 1: linear_half_tile<F, 1>(args, half, first); break;
        case 2: linear_half_tile<F, 2>(args, half, first); break;
        case 3: linear_half_tile<F, 3>(args, half, first); break;
        default: linear_half_tile<F, 4>(args, half, first); break;
      }
    }
  }
}

}  // namespace
}  // namespace ellm
