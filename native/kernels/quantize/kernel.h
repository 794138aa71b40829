// Activations to int8: per group of 32, centre = middle of the range, scale = range / 254,
// code = round((x - centre) / scale) to even.
//
// Include after kernels/vector/<isa>.h. Not-a-number inputs give unspecified codes, never a fault.
#pragma once

#include "kernels/weight_format.h"

namespace ellm {
namespace {

// Rounding of x - centre may carry the ends of the range a little past 127.
inline F32x16 to_code_range(F32x16 v) { return min(max(v, set1(-127.0f)), set1(127.0f)); }

void quantize_groups(const float* x, int64_t cols, int64_t first, int64_t count, uint8_t* out) {
  const int64_t groups = cols / kGroup;
  int8_t* codes = reinterpret_cast<int8_t*>(out);
  float* scales = reinterpret_cast<float*>(out + cols);
  float* centres = scales + groups;
  float* scaled_sums = centres + groups;
  int32_t* negative_sums = reinterpret_cast<int32_t*>(scaled_sums + groups);
  int32_t* negative_half_sums = negative_sums + groups;
  for (int64_t g = first; g < first + count; ++g) {
    const F32x16 a = load(x + g * kGroup);
    const F32x16 b = load(x + g * kGroup + 16);
    const float largest = reduce_max(max(a, b));
    const float smallest = -reduce_max(max(sub(zero(), a), sub(zero(), b)));
    // Halves first: the sum and the difference of two large floats may not be finite.
    const float half_range = 0.5f * largest - 0.5f * smallest;
    const float centre = 0.5f * largest + 0.5f * smallest;
    const float scale = half_range / 127.0f;
    const F32x16 inverse = set1(scale > 0.0f ? 127.0f / half_range : 0.0f);
    int8_t* group = codes + g * kGroup;
    store_i8(group, to_code_range(mul(sub(a, set1(centre)), inverse)));
    store_i8(group + 16, to_code_range(mul(sub(b, set1(centre)), inverse)));
    int32_t low = 0, high = 0;
    for (int i = 0; i < 16; ++i) {
      low += group[i];
      high += group[i + 16];
    }
    scales[g] = scale;
    centres[g] = centre;
    scaled_sums[g] = scale * static_cast<float>(low + high);
    negative_sums[g] = -(low + high);
    negative_half_sums[2 * g] = -low;
    negative_half_sums[2 * g + 1] = -high;
  }
}

}  // namespace
}  // namespace ellm
