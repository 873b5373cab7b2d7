// The vectorised inner loop of the built-in gemm and of attention: a register tile of TILE_ROWS x
// TILE_COLUMNS results stays in vector registers while the contraction index runs.
//
//   c (rows, TILE_COLUMNS) (+)= sum over p < depth of a[i*a_row + p*a_depth] * b[p*b_stride + j]
//
// Elements of a are broadcast, so a may lie in any order (transposed costs nothing); rows of b and c are
// vectors, so both need room for whole multiples of TILE_COLUMNS. The sum over p runs in order: the result of
// an element does not depend on the tile that it falls in.
#pragma once

#include "kernels/cpu/vector.h"

#include <stdbool.h>

#if defined(__AVX512F__)
#define TILE_ROWS 14 // 28 of 32 registers accumulate
#else
#define TILE_ROWS 6 // 12 of 16 registers accumulate
#endif
#define TILE_COLUMNS (2 * FSDP_LANES)

typedef struct tile_strides {
  int64_t a_row, a_depth, b, c;
} tile_strides;

FSDP_INLINE void tile_rows(const int rows, int64_t depth, const float *a, const float *b, float *c,
                           tile_strides strides, bool accumulate) {
  fsdp_vf sums[TILE_ROWS][2];
#pragma GCC unroll 14
  for (int i = 0; i < rows; i++) sums[i][0] = sums[i][1] = (fsdp_vf){0};
  for (int64_t p = 0; p < depth; p++) {
    // c is read when the depth has run. Fetched all at once, its lines would delay those of a and b.
    if (accumulate && p < rows) {
      __builtin_prefetch(c + p * strides.c, 1);
      __builtin_prefetch(c + p * strides.c + TILE_COLUMNS - 1, 1);
    }
    fsdp_vf left = vf_load(b), right = vf_load(b + FSDP_LANES);
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++) {
      fsdp_vf x = vf_set(a[i * strides.a_row]);
      sums[i][0] = sums[i][0] + x * left;
      sums[i][1] = sums[i][1] + x * right;
    }
    a += strides.a_depth;
    b += strides.b;
  }
#pragma GCC unroll 14
  for (int i = 0; i < rows; i++) {
    float *row = c + i * strides.c;
    vf_store(row, accumulate ? vf_load(row) + sums[i][0] : sums[i][0]);
    vf_store(row + FSDP_LANES, accumulate ? vf_load(row + FSDP_LANES) + sums[i][1] : sums[i][1]);
  }
}

// As tile_rows for any number of rows up to TILE_ROWS.
FSDP_INLINE void tile(int64_t rows, int64_t depth, const float *a, const float *b, float *c,
                      tile_strides strides, bool accumulate) {
  if (rows == TILE_ROWS) {
    tile_rows(TILE_ROWS, depth, a, b, c, strides, accumulate);
    return;
  }
  int64_t i = 0;
#if TILE_ROWS > 8
  if (rows >= 8) {
    tile_rows(8, depth, a, b, c, strides, accumulate);
    i = 8;
  }
#endif
  for (; i + 4 <= rows; i += 4)
    tile_rows(4, depth, a + i * strides.a_row, b, c + i * strides.c, strides, accumulate);
  for (; i + 2 <= rows; i += 2)
    tile_rows(2, depth, a + i * strides.a_row, b, c + i * strides.c, strides, accumulate);
  if (i < rows) tile_rows(1, depth, a + i * strides.a_row, b, c + i * strides.c, strides, accumulate);
}
