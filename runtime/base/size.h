// Arithmetic on sizes. Sizes are int64_t; what comes from outside is multiplied and added with overflow
// checks.
#pragma once

#include <stdbool.h>
#include <stdint.h>

static inline int64_t fsdp_min_i64(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static inline int64_t fsdp_max_i64(int64_t a, int64_t b) {
  return a > b ? a : b;
}

// The least multiple of `unit` (> 0) that is >= `value` (>= 0).
static inline int64_t fsdp_round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// *result = a * b or a + b; false if that overflows.
static inline bool fsdp_mul_checked(int64_t a, int64_t b, int64_t *result) {
  return !__builtin_mul_overflow(a, b, result);
}
static inline bool fsdp_add_checked(int64_t a, int64_t b, int64_t *result) {
  return !__builtin_add_overflow(a, b, result);
}
