// Rows of fp32 turned into columns, a square of vectors at a time.
#pragma once

#include "kernels/cpu/vector.h"

enum { TRANSPOSED = FSDP_LANES }; // rows turned at a time

// One step of a square's transposition exchanges, between rows that are s apart, the squares of s x s
// elements beside the diagonal. These are the lanes of the two new rows, lanes of the second one counted from
// FSDP_LANES.
#define UPPER_LANE(s, lane)     ((lane) & (s) ? FSDP_LANES + (lane) - (s) : (lane))
#define LOWER_LANE(s, lane)     ((lane) & (s) ? FSDP_LANES + (lane) : (lane) + (s))
#define FOUR_LANES(of, s, lane) of(s, (lane)), of(s, (lane) + 1), of(s, (lane) + 2), of(s, (lane) + 3)
#if FSDP_LANES == 16
#define EVERY_LANE(of, s)                                                                                    \
  FOUR_LANES(of, s, 0), FOUR_LANES(of, s, 4), FOUR_LANES(of, s, 8), FOUR_LANES(of, s, 12)
#elif FSDP_LANES == 8
#define EVERY_LANE(of, s) FOUR_LANES(of, s, 0), FOUR_LANES(of, s, 4)
#else
#define EVERY_LANE(of, s) FOUR_LANES(of, s, 0)
#endif

#define EXCHANGE(rows, s)                                                                                    \
  _Pragma("GCC unroll 16") for (int i = 0; i < FSDP_LANES; i++) {                                            \
    if (i & (s)) continue;                                                                                   \
    fsdp_vf upper = rows[i], lower = rows[i + (s)];                                                          \
    rows[i] = __builtin_shufflevector(upper, lower, EVERY_LANE(UPPER_LANE, s));                              \
    rows[i + (s)] = __builtin_shufflevector(upper, lower, EVERY_LANE(LOWER_LANE, s));                        \
  }

FSDP_INLINE void transpose_square(fsdp_vf rows[FSDP_LANES]) {
#if FSDP_LANES > 8
  EXCHANGE(rows, 8)
#endif
#if FSDP_LANES > 4
  EXCHANGE(rows, 4)
#endif
  EXCHANGE(rows, 2)
  EXCHANGE(rows, 1)
}

// out[p * width + i] = rows[i][p] for `count` <= TRANSPOSED rows and p < depth. Whole vectors are stored, in
// the order of p, with zeros behind the last row: if width is less than TRANSPOSED, they reach into what
// follows, so a caller with more rows than these begins with the last ones, and leaves room for a vector.
FSDP_INLINE void transpose_rows(const float *const rows[TRANSPOSED], int64_t count, int64_t depth,
                                int64_t width, float *out) {
  static const float zeros[FSDP_LANES] = {0};
  int64_t p = 0;
  for (; p + FSDP_LANES <= depth; p += FSDP_LANES) {
    fsdp_vf square[FSDP_LANES];
#pragma GCC unroll 16
    for (int i = 0; i < FSDP_LANES; i++) square[i] = vf_load(i < count ? rows[i] + p : zeros);
    transpose_square(square);
#pragma GCC unroll 16
    for (int i = 0; i < FSDP_LANES; i++) vf_store(out + (p + i) * width, square[i]);
  }
  for (; p < depth; p++)
    for (int i = 0; i < FSDP_LANES; i++) out[p * width + i] = i < count ? rows[i][p] : 0;
}
