#include "kernels/cpu/operand.h"
#include "kernels/cpu/vector.h"

// fp16, bit by bit: hardware support differs between levels, and fp16 only occurs when weights are read.
static float half_to_float(uint16_t half) {
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

static uint16_t half_from_float(float value) {
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

static void bf16_to_f32(const fsdp_bf16 *restrict source, float *restrict destination, int64_t count) {
  for (int64_t i = 0; i < count; i++) destination[i] = fsdp_bf16_to_f32(source[i]);
}

// As fsdp_bf16_from_f32, without a branch so that it becomes vector code.
static void bf16_from_f32(const float *restrict source, fsdp_bf16 *restrict destination, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    uint32_t bits;
    memcpy(&bits, source + i, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, quiet = bits >> 16 | 0x40u;
    destination[i] = (fsdp_bf16)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
  }
}

static void to_f32(fsdp_dtype dtype, const void *source, float *destination, int64_t count) {
  if (dtype == FSDP_F32) {
    memcpy(destination, source, (size_t)count * sizeof(float));
  } else if (dtype == FSDP_BF16) {
    bf16_to_f32(source, destination, count);
  } else {
    FSDP_CHECK(dtype == FSDP_F16, "kernels do not convert %s", fsdp_dtype_name(dtype));
    for (int64_t i = 0; i < count; i++) destination[i] = half_to_float(((const uint16_t *)source)[i]);
  }
}

static void from_f32(fsdp_dtype dtype, const float *source, void *destination, int64_t count) {
  if (dtype == FSDP_BF16) {
    bf16_from_f32(source, destination, count);
  } else {
    FSDP_CHECK(dtype == FSDP_F16, "kernels do not convert %s", fsdp_dtype_name(dtype));
    for (int64_t i = 0; i < count; i++) ((uint16_t *)destination)[i] = half_from_float(source[i]);
  }
}

void FSDP_CPU(convert)(fsdp_dtype source_dtype, const void *source, fsdp_dtype destination_dtype,
                       void *destination, int64_t count) {
  if (destination_dtype == FSDP_F32) {
    to_f32(source_dtype, source, destination, count);
    return;
  }
  if (source_dtype == FSDP_F32) {
    from_f32(destination_dtype, source, destination, count);
    return;
  }
  if (source_dtype == destination_dtype) {
    memcpy(destination, source, (size_t)(count * fsdp_dtype_bytes(source_dtype)));
    return;
  }
  float block[512];
  for (int64_t first = 0; first < count; first += 512) {
    int64_t n = fsdp_min_i64(512, count - first);
    to_f32(source_dtype, (const char *)source + first * fsdp_dtype_bytes(source_dtype), block, n);
    from_f32(destination_dtype, block, (char *)destination + first * fsdp_dtype_bytes(destination_dtype), n);
  }
}
