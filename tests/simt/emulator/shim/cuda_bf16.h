// Replaces CUDA's cuda_bf16.h when kernels are compiled for the CPU.
#pragma once

#include "runtime/base/dtype.h"

#include <cuda_runtime.h>

struct __nv_bfloat16 {
  uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  return {fsdp_bf16_from_f32(value)};
}
inline float __bfloat162float(__nv_bfloat16 value) {
  return fsdp_bf16_to_f32(value.bits);
}
inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
  return {__float2bfloat16_rn(low), __float2bfloat16_rn(high)};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) {
  return value.bits;
}
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  return {bits};
}
