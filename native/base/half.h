// Conversions between float and the 16-bit floats of model files, bit for bit as the hardware does them.
#pragma once

#include <cstdint>
#include <cstring>

namespace ellm {

// Static so that each ISA's translation unit keeps its own copy (see ARCHITECTURE.md, ISA isolation).
static inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float bf16_to_float(uint16_t half) { return bits_to_float(static_cast<uint32_t>(half) << 16); }

static inline float f16_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0) {
    // Zero and subnormals: mantissa * 2^-24 is exact in float.
    const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return bits_to_float(float_to_bits(magnitude) | sign);
  }
  if (exponent == 31) {
    // Hardware quiets signalling NaNs; so does this.
    const uint32_t quiet = mantissa == 0 ? 0u : 0x400000u;
    return bits_to_float(sign | 0x7f800000u | (mantissa << 13) | quiet);
  }
  return bits_to_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

// Round to nearest even; values past the range become the largest finite half, so that a stored KV
// value is never infinite (a stale infinity times a zero probability would be NaN).
static inline uint16_t float_to_f16_saturating(float value) {
  const uint32_t bits = float_to_bits(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477fe000u) return static_cast<uint16_t>(sign | 0x7bffu);
  if (magnitude < 0x38800000u) {
    // Adding 0.5 aligns the value so that the unit in the last place is 2^-24: hardware rounding.
    const float aligned = bits_to_float(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (float_to_bits(aligned) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

}  // namespace ellm
