// Gated activations: out = act(gate) * up, with SiLU or the tanh form of GELU.
//
// Source: SiLU x * sigmoid(x); GELU 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3), written
// as x * sigmoid(2u). Include after kernels/vector/<isa>.h.
#pragma once

#include <cstdint>

#include "kernels/vector/exp.h"

namespace ellm {
namespace {

inline F32x16 sigmoid(F32x16 x) {
  const F32x16 one = set1(1.0f);
  return div(one, add(one, exp(sub(zero(), x))));
}

inline F32x16 silu(F32x16 x) { return mul(x, sigmoid(x)); }

inline F32x16 gelu(F32x16 x) {
  const F32x16 cubic = fma(mul(mul(x, x), x), set1(0.044715f), x);
  return mul(x, sigmoid(mul(cubic, set1(1.5957691216057308f))));
}

template <F32x16 (*kActivation)(F32x16)>
void gated(const float* gate, const float* up, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += 16) {
    const int64_t count = size - i < 16 ? size - i : 16;
    const F32x16 activated = kActivation(load_first(gate + i, count));
    store_first(out + i, mul(activated, load_first(up + i, count)), count);
  }
}

}  // namespace
}  // namespace ellm
