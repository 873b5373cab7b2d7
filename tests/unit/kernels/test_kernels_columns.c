// Columns taken out of wider rows and put into them, against plain loops over elements.
#include "tests/support/kernel_case.h"
#include "tests/support/unit_test.h"

#include <signal.h>

static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};

// B * T rows of `stride` columns, of which `slice` from `offset` on are meant.
typedef struct shape {
  int64_t B, T, stride, offset, slice;
  int64_t first, part, ranks; // columns of a part; take_columns: from the slice's column `first` on
} shape;

static fsdp_op_attrs attrs_of(const shape *s) {
  return (fsdp_op_attrs){.batch = s->B,
                         .seq = s->T,
                         .out_stride = s->stride,
                         .out_offset = s->offset,
                         .out_features = s->slice,
                         .first_index = s->first,
                         .in_features = s->part,
                         .ranks = s->ranks};
}

// From the first of these columns in the first row to the last in the last one.
static kernel_range hull(const shape *s, int64_t first, int64_t count) {
  return (kernel_range){s->offset + first, (s->B * s->T - 1) * s->stride + count};
}

TEST(test_take) {
  static const shape shapes[] = {
      {1, 1, 1, 0, 1, 0, 1, 0},      {3, 5, 40, 8, 24, 8, 8, 0},   // within the slice
      {2, 7, 41, 3, 29, 13, 5, 0},   {2, 3, 40, 8, 24, 16, 16, 0}, // half is padding
      {1, 9, 37, 11, 20, 13, 10, 0}, {2, 3, 40, 8, 24, 24, 8, 0},  // padding alone
      {2, 3, 40, 8, 24, 31, 3, 0},   {1, 4, 3000, 0, 3000, 0, 3000, 0}, {2, 2, 5000, 17, 4000, 5, 99, 0},
  };
  for (int d = 0; d < 2; d++)
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
      const shape *s = &shapes[i];
      int64_t rows = s->B * s->T, taken = s->slice - s->first;
      if (taken > s->part) taken = s->part;
      kernel_case c = kernel_case_of(FSDP_OP_TAKE_COLUMNS, attrs_of(s), 0);
      double *x = kernel_case_input(&c, dtypes[d], rows * s->stride, FSDP_READ, NULL);
      double *y = kernel_case_result(&c, false, dtypes[d], rows * s->part);
      for (int64_t n = 0; n < rows; n++)
        for (int64_t j = 0; j < taken; j++) y[n * s->part + j] = x[n * s->stride + s->offset + s->first + j];
      if (taken > 0) c.parts[0] = hull(s, s->first, taken);
      c.sparse[0] = taken <= 0;
      kernel_case_check(&c);
    }
}

// Columns whose index in all ranks' is at the extent or above it are zero.
TEST(test_mask) {
  static const int64_t shapes[][5] = {// B, T, columns, first, extent
                                      {1, 1, 1, 0, 1},    {2, 3, 8, 16, 21},  {3, 5, 33, 33, 34},
                                      {2, 2, 16, 48, 40}, {1, 7, 24, 24, 48}, {2, 300, 40, 0, 39}};
  for (int d = 0; d < 2; d++)
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
      const int64_t *s = shapes[i], rows = s[0] * s[1];
      fsdp_op_attrs attrs = {
          .batch = s[0], .seq = s[1], .in_features = s[2], .first_index = s[3], .extent = s[4]};
      kernel_case c = kernel_case_of(FSDP_OP_MASK_COLUMNS, attrs, 0);
      double *y = kernel_case_input(&c, dtypes[d], rows * s[2], FSDP_UPDATE, NULL);
      for (int64_t e = 0; e < rows * s[2]; e++)
        if (s[3] + e % s[2] >= s[4]) y[e] = 0;
      kernel_case_check(&c);
    }
}

// One part, or several of which the last ones may hold padding.
static const shape joined[] = {
    {1, 1, 1, 0, 1, 0, 1, 1},   {3, 5, 40, 8, 24, 0, 24, 1},       {2, 7, 41, 3, 29, 0, 29, 1},
    {3, 5, 40, 8, 24, 0, 8, 3}, {2, 7, 41, 3, 29, 0, 10, 3},       {1, 3, 40, 8, 24, 0, 8, 4}, // a whole part
    {2, 3, 13, 2, 5, 0, 2, 5},  {1, 2, 3100, 7, 3001, 0, 1501, 2}, {1, 4, 1500, 0, 1500, 0, 1500, 1},
};
enum { JOINED = sizeof joined / sizeof *joined };

static kernel_range real_of_parts(const shape *s) {
  int64_t last = (s->slice - 1) / s->part;
  return (kernel_range){0, ((last + 1) * s->B * s->T - 1) * s->part + s->slice - last * s->part};
}

static void join(fsdp_op_kind kind, const shape *s, fsdp_dtype dtype, bool adds) {
  int64_t rows = s->B * s->T;
  kernel_case c = kernel_case_of(kind, attrs_of(s), adds ? kernel_tolerance(dtype) : 0);
  double *x = kernel_case_input(&c, dtype, s->ranks * rows * s->part, FSDP_READ, NULL);
  // Written, too, it has values before: the other columns keep them.
  double *y = kernel_case_input(&c, dtype, rows * s->stride, adds ? FSDP_UPDATE : FSDP_WRITE, NULL);
  for (int64_t n = 0; n < rows; n++)
    for (int64_t j = 0; j < s->slice; j++) {
      double *to = &y[n * s->stride + s->offset + j];
      double from = x[(j / s->part * rows + n) * s->part + j % s->part];
      *to = adds ? *to + from : from;
    }
  c.parts[0] = real_of_parts(s);
  c.parts[1] = hull(s, 0, s->slice);
  kernel_case_check(&c);
}

TEST(test_put_and_join) {
  for (int d = 0; d < 2; d++)
    for (int adds = 0; adds < 2; adds++)
      for (int i = 0; i < JOINED; i++) {
        join(FSDP_OP_JOIN_COLUMNS, &joined[i], dtypes[d], adds);
        if (joined[i].ranks == 1) join(FSDP_OP_PUT_COLUMNS, &joined[i], dtypes[d], adds);
      }
}

TEST(test_split) {
  for (int d = 0; d < 2; d++)
    for (int i = 0; i < JOINED; i++) {
      const shape *s = &joined[i];
      int64_t rows = s->B * s->T;
      kernel_case c = kernel_case_of(FSDP_OP_SPLIT_COLUMNS, attrs_of(s), 0);
      double *x = kernel_case_input(&c, dtypes[d], rows * s->stride, FSDP_READ, NULL);
      double *y = kernel_case_result(&c, false, dtypes[d], s->ranks * rows * s->part);
      for (int64_t n = 0; n < rows; n++)
        for (int64_t j = 0; j < s->slice; j++)
          y[(j / s->part * rows + n) * s->part + j % s->part] = x[n * s->stride + s->offset + j];
      c.parts[0] = hull(s, 0, s->slice);
      kernel_case_check(&c);
    }
}

static void run(void *c) {
  kernel_case_run(c);
}

static void expect_abort(fsdp_op_kind kind, const shape *s, int64_t parts) {
  bool out = kind == FSDP_OP_TAKE_COLUMNS || kind == FSDP_OP_SPLIT_COLUMNS;
  kernel_case c = kernel_case_of(kind, attrs_of(s), 0);
  for (int i = 0; i < 2; i++) {
    int64_t columns = (i == 0) == out ? s->stride : parts * s->part;
    kernel_case_input(&c, FSDP_F32, s->B * s->T * columns, i == 0 ? FSDP_READ : FSDP_WRITE, NULL);
  }
  assert_true(aborts(run, &c));
  kernel_case_free(&c);
}

TEST(test_refused) {
  expect_abort(FSDP_OP_TAKE_COLUMNS, &(shape){1, 2, 10, 4, 6, -1, 2, 0}, 1);
  expect_abort(FSDP_OP_PUT_COLUMNS, &(shape){1, 2, 10, 4, 6, 0, 7, 0}, 1);
  expect_abort(FSDP_OP_PUT_COLUMNS, &(shape){1, 2, 10, 4, 6, 0, 5, 0}, 1);
  expect_abort(FSDP_OP_JOIN_COLUMNS, &(shape){1, 2, 10, 4, 6, 0, 2, 2}, 2);
  expect_abort(FSDP_OP_SPLIT_COLUMNS, &(shape){1, 2, 10, 4, 6, 0, 2, 2}, 2);
  expect_abort(FSDP_OP_SPLIT_COLUMNS, &(shape){1, 2, 10, 5, 6, 0, 6, 1}, 1); // beyond the row
}

// Of wide rows, only the slice counts as moved.
TEST(test_work) {
  fsdp_op_attrs attrs = attrs_of(&(shape){2, 5, 64, 8, 24, 16, 16, 2});
  const double wide = 10 * 64 * 2, part = 10 * 16 * 2;
  fsdp_op_extent out[] = {{FSDP_BF16, FSDP_READ, (int64_t)wide}, {FSDP_BF16, FSDP_WRITE, (int64_t)part}};
  assert_true(fsdp_op_work_of(FSDP_OP_TAKE_COLUMNS, &attrs, out, 2).bytes == 10 * 8 * 2 + part);
  out[1].bytes *= 2;
  assert_true(fsdp_op_work_of(FSDP_OP_SPLIT_COLUMNS, &attrs, out, 2).bytes == 10 * 24 * 2 + 2 * part);
  fsdp_op_extent in[] = {out[1], out[0]};
  in[1].access = FSDP_UPDATE;
  assert_true(fsdp_op_work_of(FSDP_OP_JOIN_COLUMNS, &attrs, in, 2).bytes == 2 * 10 * 24 * 2 + 2 * part);
  attrs.first_index = 40; // padding alone
  out[1].bytes /= 2;
  assert_true(fsdp_op_work_of(FSDP_OP_TAKE_COLUMNS, &attrs, out, 2).bytes == part);
}
