// Element types and their widths, and bf16 <-> fp32 conversion.
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

// Rounds to nearest even; a NaN stays a (quiet) NaN.
static inline fsdp_bf16 fsdp_bf16_from_f32(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (fsdp_bf16)((bits >> 16) | 0x40u);
  return (fsdp_bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
