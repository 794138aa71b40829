// Integer formats on AVX-512 VNNI: one zmm is 16 output rows by 4 columns.
//
// Registers for 8 activation rows: 8 int32 sums, 8 float sums, 2 unpacked weight vectors, scales.
// A format `F` gives kBits, kOffset, kHasMin, kHalfGroups and
//   scales(plane, group) -> {d, m}     of the group (kHalfGroups: d of both halves of 16 columns)
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/linear/quantized_layout.h"

namespace ellm {
namespace {

// Two threads took 13 GB/s without, 18 GB/s with 2 to 8 KB.
constexpr int64_t kPrefetchBytes = 4096;

struct GroupScales {
  __m512 d;
  __m512 m;  // minimum, or with kHalfGroups the scale of the second half
};

inline __m512 load_16_halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// Unsigned codes of quads 2z and 2z+1 of one group.
template <int kBits>
inline void unpack_quads(const uint8_t* low, const uint8_t* high, int z, __m512i* even, __m512i* odd) {
  if constexpr (kBits == 8) {
    *even = _mm512_loadu_si512(low + z * 128);
    *odd = _mm512_loadu_si512(low + z * 128 + 64);
    return;
  }
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i packed = _mm512_loadu_si512(low + z * 64);
  *even = _mm512_and_si512(packed, nibble);
  *odd = _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble);
  if constexpr (kBits == 5) {
    const __m512i bit = _mm512_set1_epi8(16);
    uint64_t masks[2];
    std::memcpy(masks, high + z * 16, sizeof masks);
    *even = _mm512_mask_add_epi8(*even, masks[0], *even, bit);
    *odd = _mm512_mask_add_epi8(*odd, masks[1], *odd, bit);
  }
  if constexpr (kBits == 6) {
    const __m512i bits = _mm512_set1_epi8(0x30);
    const __m512i top = _mm512_loadu_si512(high + z / 2 * 64);
    const __m512i even_bits = z % 2 == 0 ? _mm512_slli_epi16(top, 4) : top;
    const __m512i odd_bits = z % 2 == 0 ? _mm512_slli_epi16(top, 2) : _mm512_srli_epi16(top, 2);
    *even = _mm512_ternarylogic_epi32(*even, even_bits, bits, 0xF8);
    *odd = _mm512_ternarylogic_epi32(*odd, odd_bits, bits, 0xF8);
  }
}

inline __m512i broadcast_quad(const int8_t* q) {
  int32_t quad;
  std::memcpy(&quad, q, sizeof quad);
  return _mm512_set1_epi32(quad);
}

constexpr int log2_of(int value) { return value <= 1 ? 0 : 1 + log2_of(value / 2); }

template <class F>
inline __m512i offset_start(const int32_t* negative_sum) {
  if constexpr (F::kOffset == 0) return _mm512_setzero_si512();
  return _mm512_slli_epi32(_mm512_set1_epi32(*negative_sum), log2_of(F::kOffset));
}

// The sum of a scale group's codes without their offset. Codes of up to 6 bits add up in bytes first
// (8 * 31 and 4 * 63 fit): one dot product with ones per scale group instead of one per quad.
template <class F>
class CodeSum {
 public:
  void add(__m512i even, __m512i odd) {
    if constexpr (F::kBits == 8) {
      sum_ = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum_, even, ones()), odd, ones());
    } else {
      sum_ = _mm512_add_epi8(sum_, _mm512_add_epi8(even, odd));
    }
  }
  // The sum, and a fresh start.
  __m512i take() {
    const __m512i total = F::kBits == 8 ? sum_ : _mm512_dpbusd_epi32(start(), sum_, ones());
    sum_ = F::kBits == 8 ? start() : _mm512_setzero_si512();
    return total;
  }

 private:
  static __m512i ones() { return _mm512_set1_epi8(1); }
  static __m512i start() { return _mm512_set1_epi32(-F::kOffset * (F::kHalfGroups ? 16 : 32)); }
  __m512i sum_ = F::kBits == 8 ? start() : _mm512_setzero_si512();
};

template <class F, int kRows>
void linear_rows(const LinearArgs& args) {
  using Planes = CodePlanes<F::kBits>;
  const int64_t groups = args.cols / kGroup;
  const uint8_t* scale_plane = Planes::scales(args.tile, groups);
  const int8_t* q[kRows];
  const float* d[kRows];
  __m512 sum[kRows];
  for (int t = 0; t < kRows; ++t) {
    q[t] = reinterpret_cast<const int8_t*>(args.quantized.data + t * args.quantized.row_bytes);
    d[t] = reinterpret_cast<const float*>(q[t] + args.cols);
    sum[t] = _mm512_setzero_ps();
  }
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t* low = Planes::low(args.tile, g);
    const uint8_t* high = Planes::high(args.tile, groups, g);
    prefetch_group<F::kBits>(low, high, kPrefetchBytes);
    const GroupScales scales = F::scales(scale_plane, g);
    __m512i dot[kRows];
    const auto negative_sums = [&](int t) { return reinterpret_cast<const int32_t*>(d[t] + 3 * groups); };
    for (int t = 0; t < kRows; ++t) {
      dot[t] = offset_start<F>(F::kHalfGroups ? negative_sums(t) + groups + 2 * g : negative_sums(t) + g);
    }
    CodeSum<F> code_sum;
    __m512 weight_sum = _mm512_setzero_ps();
    for (int z = 0; z < 4; ++z) {
      __m512i even, odd;
      unpack_quads<F::kBits>(low, high, z, &even, &odd);
      for (int t = 0; t < kRows; ++t) {
        dot[t] = _mm512_dpbusd_epi32(dot[t], even, broadcast_quad(q[t] + g * kGroup + z * 8));
        dot[t] = _mm512_dpbusd_epi32(dot[t], odd, broadcast_quad(q[t] + g * kGroup + z * 8 + 4));
      }
      code_sum.add(even, odd);
      if (F::kHalfGroups && z == 1) {
        weight_sum = _mm512_mul_ps(scales.d, _mm512_cvtepi32_ps(code_sum.take()));
        for (int t = 0; t < kRows; ++t) {
          const __m512 scale = _mm512_mul_ps(scales.d, _mm512_set1_ps(d[t][g]));
          sum[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[t]), scale, sum[t]);
          dot[t] = offset_start<F>(negative_sums(t) + groups + 2 * g + 1);
        }
      }
    }
    weight_sum = _mm512_fmadd_ps(F::kHalfGroups ? scales.m : scales.d, _mm512_cvtepi32_ps(code_sum.take()),
                                 weight_sum);
    if constexpr (F::kHasMin) weight_sum = _mm512_fmadd_ps(scales.m, _mm512_set1_ps(-32.0f), weight_sum);
    for (int t = 0; t < kRows; ++t) {
      const __m512 last = F::kHalfGroups ? scales.m : scales.d;
      const __m512 scale = _mm512_mul_ps(last, _mm512_set1_ps(d[t][g]));
      sum[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[t]), scale, sum[t]);
      if constexpr (F::kHasMin) {
        sum[t] = _mm512_fnmadd_ps(scales.m, _mm512_set1_ps(d[t][2 * groups + g]), sum[t]);
      }
      sum[t] = _mm512_fmadd_ps(weight_sum, _mm512_set1_ps(d[t][groups + g]), sum[t]);
    }
  }
  for (int t = 0; t < kRows; ++t) _mm512_storeu_ps(args.out + t * args.out_stride, sum[t]);
}

template <class F>
void quantized_linear(const LinearArgs& args) {
  static constexpr LinearTile kByRows[kMaxLinearRows] = {
      linear_rows<F, 1>, linear_rows<F, 2>, linear_rows<F, 3>, linear_rows<F, 4>,
      linear_rows<F, 5>, linear_rows<F, 6>, linear_rows<F, 7>, linear_rows<F, 8>};
  kByRows[args.rows - 1](args);
}

}  // namespace
}  // namespace ellm
