#include "runtime/base/finite.h"

#include "runtime/base/check.h"

#include <stdbool.h>

enum { BLOCK = 1024 }; // values that are checked together

// The exponent's bits: all ones in a value that is not finite.
static uint32_t exponent_mask(fsdp_dtype dtype) {
  return dtype == FSDP_F32 ? 0x7f800000u : dtype == FSDP_BF16 ? 0x7f80u : 0x7c00u;
}

static bool any_in_words(const uint32_t *words, int64_t count, uint32_t mask) {
  uint32_t any = 0;
  for (int64_t i = 0; i < count; i++) any |= (words[i] & mask) == mask;
  return any != 0;
}

static bool any_in_halves(const uint16_t *halves, int64_t count, uint16_t mask) {
  uint16_t any = 0;
  for (int64_t i = 0; i < count; i++) any |= (uint16_t)((halves[i] & mask) == mask);
  return any != 0;
}

static uint32_t bits_of(fsdp_dtype dtype, const void *values, int64_t index) {
  return dtype == FSDP_F32 ? ((const uint32_t *)values)[index] : ((const uint16_t *)values)[index];
}

int64_t fsdp_first_not_finite(fsdp_dtype dtype, const void *values, int64_t numel) {
  if (dtype == FSDP_I32) return -1;
  uint32_t mask = exponent_mask(dtype);
  for (int64_t at = 0; at < numel; at += BLOCK) {
    int64_t count = numel - at < BLOCK ? numel - at : BLOCK;
    bool any = dtype == FSDP_F32 ? any_in_words((const uint32_t *)values + at, count, mask)
                                 : any_in_halves((const uint16_t *)values + at, count, (uint16_t)mask);
    for (int64_t i = at; any && i < at + count; i++)
      if ((bits_of(dtype, values, i) & mask) == mask) return i;
  }
  return -1;
}

const char *fsdp_not_finite_name(fsdp_dtype dtype, const void *values, int64_t index) {
  uint32_t bits = bits_of(dtype, values, index), mask = exponent_mask(dtype);
  uint32_t sign = dtype == FSDP_F32 ? 0x80000000u : 0x8000u;
  FSDP_CHECK((bits & mask) == mask, "value %lld is finite", (long long)index);
  if (bits & ~mask & ~sign & (dtype == FSDP_F32 ? 0xffffffffu : 0xffffu)) return "nan";
  return bits & sign ? "-inf" : "inf";
}
