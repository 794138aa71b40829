// Activations to int8: per group of 32, scale = max|x| / 127, code = round(x / scale) to even.
//
// Include after kernels/vector/<isa>.h. Not-a-number inputs give unspecified codes, never a fault.
#pragma once

#include "kernels/weight_format.h"

namespace ellm {
namespace {

void quantize_groups(const float* x, int64_t cols, int64_t first, int64_t count, uint8_t* out) {
  const int64_t groups = cols / kGroup;
  int8_t* codes = reinterpret_cast<int8_t*>(out);
  float* scales = reinterpret_cast<float*>(out + cols);
  float* scaled_sums = scales + groups;
  int32_t* negative_sums = reinterpret_cast<int32_t*>(scaled_sums + groups);
  int32_t* negative_half_sums = negative_sums + groups;
  for (int64_t g = first; g < first + count; ++g) {
    const F32x16 a = load(x + g * kGroup);
    const F32x16 b = load(x + g * kGroup + 16);
    const float largest = reduce_max(max(abs(a), abs(b)));
    const float scale = largest / 127.0f;
    const F32x16 inverse = set1(scale > 0.0f ? 127.0f / largest : 0.0f);
    const F32x16 bound = set1(127.0f);
    int8_t* group = codes + g * kGroup;
    store_i8(group, min(mul(a, inverse), bound));
    store_i8(group + 16, min(mul(b, inverse), bound));
    int32_t low = 0, high = 0;
    for (int i = 0; i < 16; ++i) {
      low += group[i];
      high += group[i + 16];
    }
    scales[g] = scale;
    scaled_sums[g] = scale * static_cast<float>(low + high);
    negative_sums[g] = -(low + high);
    negative_half_sums[2 * g] = -low;
    negative_half_sums[2 * g + 1] = -high;
  }
}

}  // namespace
}  // namespace ellm
