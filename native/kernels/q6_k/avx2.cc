// Q6_K on AVX2; the layout is described in scalar.cc.
#include "kernels/linear/scales_avx2.h"

namespace ellm {
namespace {

inline __m256 load_8_int8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

struct Q6_K {
  static constexpr int kBits = 6;
  static constexpr int kOffset = 32;
  static constexpr bool kHasMin = false;
  static constexpr bool kHalfGroups = true;
  static constexpr int kGroupScaleBytes = 36;

  static GroupScales scales(const uint8_t* plane, int64_t group) {
    const uint8_t* p = plane + group / 8 * 288;
    const uint8_t* codes = p + 32 + group % 8 * 32;
    const __m256 d[2] = {load_8_halves(p), load_8_halves(p + 16)};
    return {{_mm256_mul_ps(d[0], load_8_int8(codes)), _mm256_mul_ps(d[1], load_8_int8(codes + 8))},
            {_mm256_mul_ps(d[0], load_8_int8(codes + 16)), _mm256_mul_ps(d[1], load_8_int8(codes + 24))}};
  }
};

}  // namespace

extern const LinearKernels kLinear_q6_k_avx2 = quantized_kernels<Q6_K>();

}  // namespace ellm
