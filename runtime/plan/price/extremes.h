// The lesser and the greater of two numbers, neither a NaN: fmin and fmax, which allow for that, are calls.
#pragma once

static inline double fsdp_lesser(double a, double b) {
  return a < b ? a : b;
}

static inline double fsdp_greater(double a, double b) {
  return a > b ? a : b;
}
