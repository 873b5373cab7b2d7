// Dropout against a generator of the tests' own: which elements are dropped, the rate, parts of rows and
// columns, rows that drop nothing, and what is not a number.
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "tests/support/draws.h"
#include "tests/support/kernel_case.h"
#include "tests/support/unit_test.h"

#include <math.h>

static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};

// The generator's known answers (Random123's kat_vectors).
TEST(test_reference) {
  uint32_t words[4];
  reference_philox(7, (const uint32_t[4]){0}, (const uint32_t[2]){0}, words);
  assert_true(words[0] == 0x5f6fb709 && words[1] == 0x0d893f64 && words[2] == 0x4f121f81 &&
              words[3] == 0x4f730a48);
  reference_philox(10, (const uint32_t[4]){0}, (const uint32_t[2]){0}, words);
  assert_true(words[0] == 0x6627e8d5 && words[1] == 0xe169c58d && words[2] == 0xbc57ac4c &&
              words[3] == 0x9b00dbd8);
}

// The words of `count` rows; every seventh drops nothing.
static double *draw_rows(int64_t count) {
  double *draws = fsdp_alloc((size_t)(2 * count) * sizeof *draws);
  for (int64_t r = 0; r < count; r++) {
    int32_t words[FSDP_DROPOUT_WORDS];
    fsdp_dropout_row(11, 3, r / 5, r % 5, words);
    assert_true(words[0] & 1);
    draws[2 * r] = r % 7 == 6 ? 0 : words[0];
    draws[2 * r + 1] = r % 7 == 6 ? 0 : words[1];
  }
  return draws;
}

// Rows and columns of a part of a whole.
typedef struct part {
  int64_t rows, columns, first_row, first_column, draws;
} part;

static void check(part p, double rate, fsdp_dtype dtype, bool backward) {
  const uint64_t op = fsdp_random_stream("model.layers.3.mlp.down_proj");
  const fsdp_op_attrs attrs = {.batch = 1,
                               .seq = p.rows,
                               .channels = p.columns,
                               .dropout = (float)rate,
                               .drop_key = op,
                               .draws = p.draws,
                               .first_row = p.first_row,
                               .first_index = p.first_column};
  kernel_case c = kernel_case_of(backward ? FSDP_OP_DROPOUT_BACKWARD : FSDP_OP_DROPOUT, attrs,
                                 dtype == FSDP_F32 ? 1e-7 : 4e-3);
  double *draws = draw_rows(p.draws);
  double *x = kernel_case_input(&c, dtype, p.rows * p.columns, backward ? FSDP_READ : FSDP_UPDATE, NULL);
  double *y = backward ? kernel_case_output(&c, dtype, p.rows * p.columns) : x;
  kernel_case_input(&c, FSDP_I32, 2 * p.draws, FSDP_READ, draws);
  for (int64_t r = 0; r < p.rows; r++) {
    const int64_t row = p.first_row + r;
    const int32_t words[2] = {(int32_t)draws[2 * row], (int32_t)draws[2 * row + 1]};
    for (int64_t i = 0; i < p.columns; i++)
      y[r * p.columns + i] = x[r * p.columns + i] * reference_dropout(words, op, 0, p.first_column + i, rate);
  }
  kernel_case_check(&c);
  free(draws);
}

TEST(test_elements) {
  static const part parts[] = {{9, 80, 0, 0, 9},  {5, 1, 3, 0, 9},      {3, 67, 2, 5, 20},
                               {4, 64, 0, 64, 4}, {2, 1000, 1, 333, 3}, {20, 3, 0, 62, 20}};
  static const double rates[] = {0, 0.1, 0.5, 0.999};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    for (int r = 0; r < 4; r += test_stride(3))
      for (int d = 0; d < 2; d++)
        for (int backward = 0; backward < 2; backward++) check(parts[i], rates[r], dtypes[d], backward);
}

// Of 400,000 elements a rate within four standard deviations; neighbours, rows and ops are independent.
TEST(test_rate) {
  static const double rates[] = {0.01, 0.1, 0.5, 0.9};
  enum { ROWS = 400, COLUMNS = 1000 };
  for (int r = 0; r < 4; r++) {
    const uint64_t ops[2] = {fsdp_random_stream("transformer.h.0.mlp.c_proj"),
                             fsdp_random_stream("transformer.h.1.mlp.c_proj")};
    double dropped = 0, both[3] = {0}, p = rates[r];
    for (int64_t row = 0; row < ROWS; row++) {
      int32_t words[2], next[2];
      fsdp_dropout_row(1, 0, 0, row, words);
      fsdp_dropout_row(1, 0, 0, row + 1, next);
      for (int64_t i = 0; i < COLUMNS; i++) {
        const bool gone = reference_dropout(words, ops[0], 0, i, p) == 0;
        dropped += gone;
        both[0] += gone && reference_dropout(words, ops[0], 0, i + 1, p) == 0;
        both[1] += gone && reference_dropout(next, ops[0], 0, i, p) == 0;
        both[2] += gone && reference_dropout(words, ops[1], 0, i, p) == 0;
      }
    }
    const double n = (double)ROWS * COLUMNS;
    assert_true(fabs(dropped / n - p) < 4 * sqrt(p * (1 - p) / n));
    for (int k = 0; k < 3; k++)
      assert_true(fabs(both[k] / n - p * p) < 4 * sqrt(p * p * (1 - p * p) / n) * 1.5);
  }
}

// Every one of seed, step, sequence and position changes a row's words.
TEST(test_rows) {
  int32_t words[5][2];
  fsdp_dropout_row(1, 2, 3, 4, words[0]);
  fsdp_dropout_row(2, 2, 3, 4, words[1]);
  fsdp_dropout_row(1, 3, 3, 4, words[2]);
  fsdp_dropout_row(1, 2, 4, 4, words[3]);
  fsdp_dropout_row(1, 2, 3, 5, words[4]);
  for (int a = 0; a < 5; a++)
    for (int b = 0; b < a; b++) assert_true(words[a][1] != words[b][1]);
}

// What is dropped is 0 even if it was not a number: a padding row of another rank's may be anything.
TEST(test_not_a_number) {
  enum { COLUMNS = 64 };
  const fsdp_op_attrs attrs = {
      .batch = 1, .seq = 1, .channels = COLUMNS, .dropout = 0.5f, .drop_key = 9, .draws = 1};
  kernel_case c = kernel_case_of(FSDP_OP_DROPOUT, attrs, 0);
  double values[COLUMNS];
  for (int i = 0; i < COLUMNS; i++) values[i] = NAN;
  kernel_case_input(&c, FSDP_F32, COLUMNS, FSDP_UPDATE, values);
  kernel_case_input(&c, FSDP_I32, 2, FSDP_READ, (const double[2]){5, 7});
  kernel_case_run(&c);
  int zeros = 0;
  for (int i = 0; i < COLUMNS; i++) zeros += kernel_value(&c.operands[0], i) == 0;
  assert_true(zeros > COLUMNS / 4 && zeros < 3 * COLUMNS / 4);
  kernel_case_free(&c);
}
