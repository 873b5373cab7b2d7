#include "runtime/exchange/comm_sum.h"

#include "runtime/base/check.h"

// Compiled for two instruction set levels, of which the loader takes this core's best. An instrumented
// build keeps to one: the loader asks before the sanitizer's runtime is there.
#if defined __x86_64__ && !defined FSDP_SANITIZE_ADDRESS && !defined FSDP_SANITIZE_THREAD
#define LEVELS __attribute__((target_clones("avx2", "default")))
#else
#define LEVELS
#endif

LEVELS static void set_bf16(float *restrict sums, const fsdp_bf16 *restrict values, int64_t numel) {
  for (int64_t i = 0; i < numel; i++) sums[i] = fsdp_bf16_to_f32(values[i]);
}

LEVELS static void add_bf16(float *restrict sums, const fsdp_bf16 *restrict values, int64_t numel) {
  for (int64_t i = 0; i < numel; i++) sums[i] += fsdp_bf16_to_f32(values[i]);
}

LEVELS static void add_f32(float *restrict sums, const float *restrict values, int64_t numel) {
  for (int64_t i = 0; i < numel; i++) sums[i] += values[i];
}

LEVELS static void store_bf16(const float *restrict sums, fsdp_bf16 *restrict output, int64_t numel) {
  for (int64_t i = 0; i < numel; i++) output[i] = fsdp_bf16_from_f32(sums[i]);
}

static void check(int64_t numel, fsdp_dtype dtype) {
  FSDP_CHECK(numel <= FSDP_COMM_SUM_TILE_ELEMS, "%lld elements in a tile", (long long)numel);
  FSDP_CHECK(dtype == FSDP_F32 || dtype == FSDP_BF16, "a sum of %s", fsdp_dtype_name(dtype));
}

void fsdp_comm_sum_add(fsdp_comm_sum *sum, bool first, const void *values, int64_t numel, fsdp_dtype dtype) {
  check(numel, dtype);
  if (dtype == FSDP_BF16) {
    (first ? set_bf16 : add_bf16)(sum->sums, values, numel);
  } else if (first) {
    memcpy(sum->sums, values, (size_t)numel * sizeof *sum->sums);
  } else {
    add_f32(sum->sums, values, numel);
  }
}

void fsdp_comm_sum_store(fsdp_comm_sum *sum, void *output, int64_t numel, fsdp_dtype dtype) {
  check(numel, dtype);
  if (dtype == FSDP_BF16) {
    store_bf16(sum->sums, output, numel);
  } else {
    memcpy(output, sum->sums, (size_t)numel * sizeof *sum->sums);
  }
}
