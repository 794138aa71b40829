// exp on 16 lanes: relative error under 2 ulp for x in [-87, 88], zero below.
//
// Source: range reduction by ln 2 in two parts and the degree-5 polynomial of Cephes' expf
// (S. Moshier, netlib.org/cephes). Include after kernels/vector/<isa>.h.
#pragma once

namespace ellm {
namespace {

inline constexpr float kExpLowest = -87.0f;  // exp below is under the smallest normal float

inline F32x16 exp(F32x16 x) {
  const F32x16 clamped = min(max(x, set1(kExpLowest)), set1(88.0f));
  const F32x16 n = round_even(mul(clamped, set1(1.44269504088896341f)));
  F32x16 r = fma(n, set1(-0.693359375f), clamped);
  r = fma(n, set1(2.12194440e-4f), r);
  F32x16 p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, mul(r, r), add(r, set1(1.0f)));
  return zero_below(x, kExpLowest, mul(p, pow2(n)));
}

}  // namespace
}  // namespace ellm
