// Rows of fp32 turned into columns, four at a time in vector registers.
#pragma once

#include "kernels/cpu/vector.h"

enum { TRANSPOSED = 4 };

typedef float four __attribute__((vector_size(16)));

FSDP_INLINE void transpose_four(const float *const rows[TRANSPOSED], int64_t depth, int64_t width,
                                float *out) {
  int64_t p = 0;
  for (; p + 4 <= depth; p += 4) {
    four r[4], low, high;
    for (int i = 0; i < 4; i++) memcpy(&r[i], rows[i] + p, sizeof r[i]);
    low = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5),
    high = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
    four t0 = __builtin_shufflevector(low, high, 0, 1, 4, 5),
         t1 = __builtin_shufflevector(low, high, 2, 3, 6, 7);
    low = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7),
    high = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
    four t2 = __builtin_shufflevector(low, high, 0, 1, 4, 5),
         t3 = __builtin_shufflevector(low, high, 2, 3, 6, 7);
    memcpy(out + p * width, &t0, sizeof t0);
    memcpy(out + (p + 1) * width, &t1, sizeof t1);
    memcpy(out + (p + 2) * width, &t2, sizeof t2);
    memcpy(out + (p + 3) * width, &t3, sizeof t3);
  }
  for (; p < depth; p++)
    for (int i = 0; i < 4; i++) out[p * width + i] = rows[i][p];
}

FSDP_INLINE void transpose_rest(const float *const rows[TRANSPOSED], int count, int64_t depth, int64_t width,
                                float *out) {
  if (count == 2) {
    int64_t p = 0;
    for (; p + 4 <= depth; p += 4) {
      four a, b;
      memcpy(&a, rows[0] + p, sizeof a);
      memcpy(&b, rows[1] + p, sizeof b);
      four low = __builtin_shufflevector(a, b, 0, 4, 1, 5), high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      memcpy(out + p * width, &low, 8);
      memcpy(out + (p + 1) * width, (const char *)&low + 8, 8);
      memcpy(out + (p + 2) * width, &high, 8);
      memcpy(out + (p + 3) * width, (const char *)&high + 8, 8);
    }
    for (; p < depth; p++) out[p * width] = rows[0][p], out[p * width + 1] = rows[1][p];
    return;
  }
  for (int i = 0; i < count; i++)
    for (int64_t p = 0; p < depth; p++) out[p * width + i] = rows[i][p];
}

// out[p * width + i] = rows[i][p] for `count` <= 4 rows and p < depth.
FSDP_INLINE void transpose_rows(const float *const rows[TRANSPOSED], int64_t count, int64_t depth,
                                int64_t width, float *out) {
  if (count == TRANSPOSED) {
    transpose_four(rows, depth, width, out);
  } else {
    transpose_rest(rows, (int)count, depth, width, out);
  }
}
