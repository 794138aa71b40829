// Q6_K on AVX-512 VNNI; the layout is described in scalar.cc.
#include "kernels/linear/scales_avx512.h"

namespace ellm {
namespace {

struct Q6_K {
  static constexpr int kBits = 6;
  static constexpr int kOffset = 32;
  static constexpr bool kHasMin = false;
  static constexpr bool kHalfGroups = true;
  static constexpr int kGroupScaleBytes = 36;

  static GroupScales scales(const uint8_t* plane, int64_t group) {
    const uint8_t* p = plane + group / 8 * 288;
    const __m128i* codes = reinterpret_cast<const __m128i*>(p + 32 + group % 8 * 32);
    const __m512 d = load_16_halves(p);
    return {_mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes)))),
            _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes + 1))))};
  }
};

}  // namespace

extern const LinearKernels kLinear_q6_k_avx512 = quantized_kernels<Q6_K>();

}  // namespace ellm
