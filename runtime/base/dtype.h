// Element types and their widths, and conversion of bf16 and fp16 to and from fp32.
#pragma once

#include <stdint.h>
#include <string.h>

typedef enum fsdp_dtype { FSDP_F32, FSDP_BF16, FSDP_F16, FSDP_I32, FSDP_DTYPE_COUNT } fsdp_dtype;

typedef uint16_t fsdp_bf16; // the upper half of an IEEE binary32

static inline int64_t fsdp_dtype_bytes(fsdp_dtype dtype) {
  return dtype == FSDP_BF16 || dtype == FSDP_F16 ? 2 : 4;
}

// "fp32", "bf16", "fp16", "int32".
static inline const char *fsdp_dtype_name(fsdp_dtype dtype) {
  return dtype == FSDP_F32 ? "fp32" : dtype == FSDP_BF16 ? "bf16" : dtype == FSDP_F16 ? "fp16" : "int32";
}

static inline float fsdp_bf16_to_f32(fsdp_bf16 value) {
  uint32_t bits = (uint32_t)value << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

// Rounds to nearest even; a NaN stays a (quiet) NaN. Without a branch, so that loops become vector code.
static inline fsdp_bf16 fsdp_bf16_from_f32(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, quiet = bits >> 16 | 0x40u;
  return (fsdp_bf16)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

// fp16 (IEEE binary16) bit by bit: hardware support differs, and it only occurs when weights are read or
// exported.
static inline float fsdp_f16_to_f32(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = (half >> 10) & 0x1fu, fraction = half & 0x3ffu;
  float magnitude;
  if (exponent == 0) { // zero or subnormal: fraction * 2^-24 is exact
    magnitude = (float)fraction * 0x1p-24f;
  } else {
    uint32_t bits = exponent == 31 ? 0x7f800000u | fraction << 13 : (exponent + 112) << 23 | fraction << 13;
    memcpy(&magnitude, &bits, sizeof magnitude);
  }
  return sign ? -magnitude : magnitude;
}

// Rounds to nearest even; what is too large becomes infinite.
static inline uint16_t fsdp_f16_from_f32(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
  if (bits >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); // rounds beyond 65504
  if (bits < 0x38800000u) { // subnormal: the sum is rounded to a multiple of 2^-24
    float magnitude;
    memcpy(&magnitude, &bits, sizeof magnitude);
    magnitude += 0.5f;
    memcpy(&bits, &magnitude, sizeof bits);
    return (uint16_t)(sign | (bits - 0x3f000000u));
  }
  bits += 0xfffu + ((bits >> 13) & 1u);
  return (uint16_t)(sign | (bits - 0x38000000u) >> 13);
}
