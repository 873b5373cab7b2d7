#include "kernels/cpu/operand.h"

static void bf16_to_f32(const fsdp_bf16 *restrict source, float *restrict destination, int64_t count) {
  for (int64_t i = 0; i < count; i++) destination[i] = fsdp_bf16_to_f32(source[i]);
}

static void bf16_from_f32(const float *restrict source, fsdp_bf16 *restrict destination, int64_t count) {
  for (int64_t i = 0; i < count; i++) destination[i] = fsdp_bf16_from_f32(source[i]);
}

static void to_f32(fsdp_dtype dtype, const void *source, float *destination, int64_t count) {
  if (dtype == FSDP_F32) {
    memcpy(destination, source, (size_t)count * sizeof(float));
  } else if (dtype == FSDP_BF16) {
    bf16_to_f32(source, destination, count);
  } else {
    FSDP_CHECK(dtype == FSDP_F16, "kernels do not convert %s", fsdp_dtype_name(dtype));
    for (int64_t i = 0; i < count; i++) destination[i] = fsdp_f16_to_f32(((const uint16_t *)source)[i]);
  }
}

static void from_f32(fsdp_dtype dtype, const float *source, void *destination, int64_t count) {
  if (dtype == FSDP_BF16) {
    bf16_from_f32(source, destination, count);
  } else {
    FSDP_CHECK(dtype == FSDP_F16, "kernels do not convert %s", fsdp_dtype_name(dtype));
    for (int64_t i = 0; i < count; i++) ((uint16_t *)destination)[i] = fsdp_f16_from_f32(source[i]);
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
