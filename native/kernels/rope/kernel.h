// Rotary embedding of one head in place, with cos and sin of its position from a table.
//
// Source: Su et al., RoFormer, arXiv 2104.09864. Include after kernels/vector/<isa>.h.
#pragma once

#include <cstdint>

namespace ellm {
namespace {

void rope_halves(float* head, int64_t rotated, const float* cosine, const float* sine) {
  const int64_t half = rotated / 2;
  for (int64_t i = 0; i < half; i += 16) {
    const int64_t count = half - i < 16 ? half - i : 16;
    const F32x16 c = load_first(cosine + i, count);
    const F32x16 s = load_first(sine + i, count);
    const F32x16 a = load_first(head + i, count);
    const F32x16 b = load_first(head + half + i, count);
    store_first(head + i, fma(a, c, sub(zero(), mul(b, s))), count);
    store_first(head + half + i, fma(a, s, mul(b, c)), count);
  }
}

// Pairs lie side by side; the few scalar operations are those of rope_halves, in its order.
void rope_interleaved(float* head, int64_t rotated, const float* cosine, const float* sine) {
  for (int64_t i = 0; i < rotated / 2; ++i) {
    const float a = head[2 * i];
    const float b = head[2 * i + 1];
    const float b_sine = b * sine[i];
    const float b_cosine = b * cosine[i];
    head[2 * i] = __builtin_fmaf(a, cosine[i], -b_sine);
    head[2 * i + 1] = __builtin_fmaf(a, sine[i], b_cosine);
  }
}

}  // namespace
}  // namespace ellm
