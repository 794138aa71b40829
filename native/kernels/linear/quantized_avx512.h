// Integer formats on AVX-512 VNNI: one zmm is 16 output rows by 4 columns.
//
// Registers for 8 activation rows: 8 int32 sums, 8 float sums, 2 unpacked weight vectors, scales.
// The same loop runs on packed tiles and on expanded ones. Many activation rows share the work of
// expanding; a record of kExpandedGroupBytes per group of 32 columns then holds the codes as bytes
// (vector q is quad q, as in quantized_layout.h), d and m of its 16 lanes and the sum of its weights.
// A format `F` gives kBits, kOffset, kHasMin, kHalfGroups and
//   scales(plane, group) -> {d, m}     of the group (kHalfGroups: d of both halves of 16 columns)
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/linear/quantized_layout.h"

namespace ellm {
namespace {

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
  void quads(int z, __m512i* even, __m512i* odd) {
    unpack_quads<F::kBits>(low_, high_, z, even, odd);
    code_sum_.add(*even, *odd);
  }
  // Scale of a scale group, whose codes have all been used.
  __m512 end_part(int part) {
    const __m512 d = part == 0 ? scales_.d : scales_.m;
    weight_sum_ = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(code_sum_.take()), weight_sum_);
    return d;
  }
  __m512 minimum() const { return scales_.m; }
  __m512 weight_sum() const {
    if constexpr (F::kHasMin) return _mm512_fmadd_ps(scales_.m, _mm512_set1_ps(-32.0f), weight_sum_);
    return weight_sum_;
  }

 private:
  const uint8_t* low_;
  const uint8_t* high_;
  GroupScales scales_;
  CodeSum<F> code_sum_;
  __m512 weight_sum_ = _mm512_setzero_ps();
};

class ExpandedGroup {
 public:
  ExpandedGroup(const uint8_t* tile, int64_t, int64_t group) : record_(tile + group * kExpandedGroupBytes) {}
  void quads(int z, __m512i* even, __m512i* odd) const {
    *even = _mm512_loadu_si512(record_ + z * 128);
    *odd = _mm512_loadu_si512(record_ + z * 128 + 64);
  }
  __m512 end_part(int part) const { return _mm512_loadu_ps(record_ + 512 + part * 64); }
  __m512 minimum() const { return _mm512_loadu_ps(record_ + 576); }
  __m512 weight_sum() const { return _mm512_loadu_ps(record_ + 640); }

 private:
  const uint8_t* record_;
};

template <class F, class Group, int kRows>
void linear_rows(const LinearArgs& args) {
  constexpr int kParts = F::kHalfGroups ? 2 : 1;
  const int64_t groups = args.cols / kGroup;
  const int8_t* q[kRows];
  const float* d[kRows];
  __m512 sum[kRows];
  for (int t = 0; t < kRows; ++t) {
    q[t] = reinterpret_cast<const int8_t*>(args.quantized.data + t * args.quantized.row_bytes);
    d[t] = reinterpret_cast<const float*>(q[t] + args.cols);
    sum[t] = _mm512_setzero_ps();
  }
  for (int64_t g = 0; g < groups; ++g) {
    Group group(args.tile, groups, g);
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      __m512i dot[kRows];
      for (int t = 0; t < kRows; ++t) {
        const int32_t* negative = reinterpret_cast<const int32_t*>(d[t] + 3 * groups);
        dot[t] = offset_start<F>(F::kHalfGroups ? negative + groups + 2 * g + part : negative + g);
      }
#pragma GCC unroll 4
      for (int z = 4 / kParts * part; z < 4 / kParts * (part + 1); ++z) {
        __m512i even, odd;
        group.quads(z, &even, &odd);
        for (int t = 0; t < kRows; ++t) {
          dot[t] = _mm512_dpbusd_epi32(dot[t], even, broadcast_quad(q[t] + g * kGroup + z * 8));
          dot[t] = _mm512_dpbusd_epi32(dot[t], odd, broadcast_quad(q[t] + g * kGroup + z * 8 + 4));
        }
      }
      const __m512 weight_scale = group.end_part(part);
      for (int t = 0; t < kRows; ++t) {
        const __m512 scale = _mm512_mul_ps(weight_scale, _mm512_set1_ps(d[t][g]));
        sum[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[t]), scale, sum[t]);
      }
    }
    const __m512 weight_sum = group.weight_sum();
    for (int t = 0; t < kRows; ++t) {
      if constexpr (F::kHasMin) {
        sum[t] = _mm512_fnmadd_ps(group.minimum(), _mm512_set1_ps(d[t][2 * groups + g]), sum[t]);
      }
      sum[t] = _mm512_fmadd_ps(weight_sum, _mm512_set1_ps(d[t][groups + g]), sum[t]);
    }
  }
  for (int t = 0; t < kRows; ++t) _mm512_storeu_ps(args.out + t * args.out_stride, sum[t]);
}

template <class F, class Group>
void quantized_linear(const LinearArgs& args) {
  static constexpr LinearTile kByRows[kMaxLinearRows] = {
      linear_rows<F, Group, 1>, linear_rows<F, Group, 2>, linear_rows<F, Group, 3>, linear_rows<F, Group, 4>,
      linear_rows<F, Group, 5>, linear_rows<F, Group, 6>, linear_rows<F, Group, 7>, linear_rows<F, Group, 8>};
  kByRows[args.rows - 1](args);
}

template <class F>
void expand_tile(const uint8_t* tile, int64_t cols, uint8_t* out) {
  constexpr int kParts = F::kHalfGroups ? 2 : 1;
  const int64_t groups = cols / kGroup;
  for (int64_t g = 0; g < groups; ++g) {
    PackedGroup<F> group(tile, groups, g);
    uint8_t* const record = out + g * kExpandedGroupBytes;
    for (int part = 0; part < kParts; ++part) {
      for (int z = 4 / kParts * part; z < 4 / kParts * (part + 1); ++z) {
        __m512i even, odd;
        group.quads(z, &even, &odd);
        _mm512_storeu_si512(record + z * 128, even);
        _mm512_storeu_si512(record + z * 128 + 64, odd);
      }
      _mm512_storeu_ps(record + 512 + part * 64, group.end_part(part));
    }
    if constexpr (F::kHasMin) _mm512_storeu_ps(record + 576, group.minimum());
    _mm512_storeu_ps(record + 640, group.weight_sum());
  }
}

template <class F>
constexpr LinearKernels quantized_kernels() {
  return {quantized_linear<F, PackedGroup<F>>, expand_tile<F>, quantized_linear<F, ExpandedGroup>};
}

}  // namespace
}  // namespace ellm
