// Sixteen float lanes in plain C++: the specification of kernels/vector/{avx2,avx512}.h.
//
// Every kernel that is not an integer dot product is one template over these names. Each operation
// rounds once, reductions have one fixed tree, so all ISAs give the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/half.h"

namespace ellm {
namespace {

struct F32x16 {
  float lane[16];
};

// F32x16 sums that a loop may hold at once.
inline constexpr int kAccumulators = 16;

inline F32x16 set1(float value) {
  F32x16 r;
  for (float& lane : r.lane) lane = value;
  return r;
}
inline F32x16 zero() { return set1(0.0f); }
inline F32x16 load(const float* p) {
  F32x16 r;
  std::memcpy(r.lane, p, sizeof r.lane);
  return r;
}
inline void store(float* p, F32x16 v) { std::memcpy(p, v.lane, sizeof v.lane); }
inline F32x16 load_first(const float* p, int64_t count) {
  F32x16 r = zero();
  for (int64_t i = 0; i < count; ++i) r.lane[i] = p[i];
  return r;
}
inline void store_first(float* p, F32x16 v, int64_t count) {
  for (int64_t i = 0; i < count; ++i) p[i] = v.lane[i];
}
inline F32x16 load_f16(const uint16_t* p) {
  F32x16 r;
  for (int i = 0; i < 16; ++i) r.lane[i] = f16_to_float(p[i]);
  return r;
}
inline F32x16 load_bf16(const uint16_t* p) {
  F32x16 r;
  for (int i = 0; i < 16; ++i) r.lane[i] = bf16_to_float(p[i]);
  return r;
}
inline F32x16 add(F32x16 a, F32x16 b) {
  for (int i = 0; i < 16; ++i) a.lane[i] += b.lane[i];
  return a;
}
inline F32x16 sub(F32x16 a, F32x16 b) {
  for (int i = 0; i < 16; ++i) a.lane[i] -= b.lane[i];
  return a;
}
inline F32x16 mul(F32x16 a, F32x16 b) {
  for (int i = 0; i < 16; ++i) a.lane[i] *= b.lane[i];
  return a;
}
inline F32x16 div(F32x16 a, F32x16 b) {
  for (int i = 0; i < 16; ++i) a.lane[i] /= b.lane[i];
  return a;
}
// a * b + c, rounded once.
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  for (int i = 0; i < 16; ++i) c.lane[i] = std::fma(a.lane[i], b.lane[i], c.lane[i]);
  return c;
}
// As the instruction: the second operand where the first is not greater.
inline F32x16 max(F32x16 a, F32x16 b) {
  for (int i = 0; i < 16; ++i) a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
  return a;
}
inline F32x16 min(F32x16 a, F32x16 b) {
  for (int i = 0; i < 16; ++i) a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
  return a;
}
inline F32x16 round_even(F32x16 a) {
  for (float& lane : a.lane) lane = std::nearbyintf(lane);
  return a;
}
// value where x >= bound, else zero.
inline F32x16 zero_below(F32x16 x, float bound, F32x16 value) {
  for (int i = 0; i < 16; ++i) value.lane[i] = x.lane[i] >= bound ? value.lane[i] : 0.0f;
  return value;
}
// 2^n for integral n in [-126, 127].
inline F32x16 pow2(F32x16 n) {
  for (float& lane : n.lane) {
    lane = bits_to_float(static_cast<uint32_t>(static_cast<int32_t>(lane) + 127) << 23);
  }
  return n;
}
// v where begin <= first + lane < end, else -infinity.
inline F32x16 mask_range(F32x16 v, int32_t first, int32_t begin, int32_t end) {
  for (int i = 0; i < 16; ++i) {
    if (first + i < begin || first + i >= end) v.lane[i] = -INFINITY;
  }
  return v;
}
inline float reduce_add(F32x16 v) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) v.lane[i] += v.lane[i + half];
  }
  return v.lane[0];
}
inline float reduce_max(F32x16 v) {
  float result = v.lane[0];
  for (float lane : v.lane) result = result > lane ? result : lane;
  return result;
}
// Nearest even, |v| <= 127.
inline void store_i8(int8_t* p, F32x16 v) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(std::nearbyintf(v.lane[i]));
}
// Nearest even, |v| <= 32767.
inline void store_i16(int16_t* p, F32x16 v) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int16_t>(std::nearbyintf(v.lane[i]));
}
inline void store_f16(uint16_t* p, F32x16 v) {
  for (int i = 0; i < 16; ++i) p[i] = float_to_f16_saturating(v.lane[i]);
}

struct I32x16 {
  int32_t lane[16];
};

inline F32x16 to_float(I32x16 v) {
  F32x16 r;
  for (int i = 0; i < 16; ++i) r.lane[i] = static_cast<float>(v.lane[i]);
  return r;
}
// Nearest even, 0 <= v <= 255.
inline void store_u8(uint8_t* p, F32x16 v) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<uint8_t>(std::nearbyintf(v.lane[i]));
}

}  // namespace
}  // namespace ellm
