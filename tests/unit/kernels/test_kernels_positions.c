// Learned positions and their table's gradient against plain loops in double.
#include "tests/support/kernel_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};

typedef struct shape {
  int64_t B, T, C, M, first;
} shape;
// The whole table, its beginning, its middle and its end.
static const shape shapes[] = {
    {1, 1, 1, 1, 0}, {3, 17, 33, 17, 0}, {2, 5, 80, 40, 0}, {4, 9, 19, 40, 7}, {1, 6, 257, 10, 4}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static fsdp_op_attrs attrs_of(const shape *s) {
  return (fsdp_op_attrs){
      .batch = s->B, .seq = s->T, .channels = s->C, .positions = s->M, .first_index = s->first};
}

static void test_add_positions(void **state) {
  (void)state;
  for (int d = 0; d < 4; d++) // table and stream each in both dtypes
    for (int i = 0; i < SHAPES; i++) {
      const shape *s = &shapes[i];
      kernel_case c = kernel_case_of(FSDP_OP_ADD_POSITIONS, attrs_of(s), kernel_tolerance(dtypes[d % 2]));
      double *weight = kernel_case_input(&c, dtypes[d / 2], s->M * s->C, FSDP_READ, NULL);
      double *h = kernel_case_input(&c, dtypes[d % 2], s->B * s->T * s->C, FSDP_UPDATE, NULL);
      for (int64_t b = 0; b < s->B; b++)
        for (int64_t t = 0; t < s->T; t++)
          for (int64_t k = 0; k < s->C; k++)
            h[(b * s->T + t) * s->C + k] += weight[(s->first + t) * s->C + k];
      c.parts[0] = (kernel_range){s->first * s->C, s->T * s->C};
      kernel_case_check(&c);
    }
}

static void test_positions_backward(void **state) {
  (void)state;
  for (int d = 0; d < 4; d++)
    for (int update = 0; update < 2; update++)
      for (int i = 0; i < SHAPES; i++) {
        const shape *s = &shapes[i];
        kernel_case c =
            kernel_case_of(FSDP_OP_POSITIONS_BACKWARD, attrs_of(s), kernel_tolerance(dtypes[d > 0]));
        double *d_h = kernel_case_input(&c, dtypes[d / 2], s->B * s->T * s->C, FSDP_READ, NULL);
        double *d_weight = kernel_case_result(&c, update, dtypes[d % 2], s->M * s->C);
        for (int64_t b = 0; b < s->B; b++)
          for (int64_t t = 0; t < s->T; t++)
            for (int64_t k = 0; k < s->C; k++)
              d_weight[(s->first + t) * s->C + k] += d_h[(b * s->T + t) * s->C + k];
        if (update) c.parts[1] = (kernel_range){s->first * s->C, s->T * s->C};
        kernel_case_check(&c);
      }
}

// A bf16 table's gradient is summed in fp32 and rounded once: 256 + 1 + 1 is 258, and 256 if each sum is
// rounded.
static void test_sum_is_rounded_once(void **state) {
  (void)state;
  const double terms[] = {256, 1, 1};
  fsdp_op_attrs attrs = {.batch = 3, .seq = 1, .channels = 1, .positions = 1};
  kernel_case c = kernel_case_of(FSDP_OP_POSITIONS_BACKWARD, attrs, 0);
  kernel_case_input(&c, FSDP_BF16, 3, FSDP_READ, terms);
  kernel_case_output(&c, FSDP_BF16, 1)[0] = 258;
  kernel_case_check(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_add_positions),
      cmocka_unit_test(test_positions_backward),
      cmocka_unit_test(test_sum_is_rounded_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
