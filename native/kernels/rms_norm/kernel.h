// RMS norm of one row: 16 partial sums of squares, one fixed reduction tree.
//
// Include after kernels/vector/<isa>.h.
#pragma once

#include <cstdint>

namespace ellm {
namespace {

void rms_norm(const float* x, const float* weight, int64_t size, float epsilon, float* y) {
  F32x16 squares = zero();
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) squares = fma(load(x + i), load(x + i), squares);
  const int64_t rest = size - i;
  if (rest > 0) squares = fma(load_first(x + i, rest), load_first(x + i, rest), squares);
  const float mean = reduce_add(squares) / static_cast<float>(size);
  const F32x16 scale = set1(1.0f / __builtin_sqrtf(mean + epsilon));
  for (i = 0; i + 16 <= size; i += 16) store(y + i, mul(mul(load(x + i), scale), load(weight + i)));
  if (rest > 0) {
    const F32x16 scaled = mul(load_first(x + i, rest), scale);
    store_first(y + i, mul(scaled, load_first(weight + i, rest)), rest);
  }
}

}  // namespace
}  // namespace ellm
