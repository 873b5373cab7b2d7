// GELU in the form with tanh against the formula in double.
#include "runtime/base/check.h"
#include "tests/support/kernel_case.h"
#include "tests/support/unit_test.h"

#include <math.h>

enum { WIDTHS = 4, ROWS = 5 };
static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};
static const int64_t widths[WIDTHS] = {1, 31, 1536, 2049};

static double gelu(double x) {
  return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

static fsdp_op_attrs attrs_of(int64_t rows, int64_t width) {
  return (fsdp_op_attrs){.batch = 1, .seq = rows, .intermediate = width};
}

TEST(test_gelu) {
  for (int d = 0; d < 2; d++)
    for (int w = 0; w < WIDTHS; w++)
      for (int wide = 0; wide < 2; wide++) {
        int64_t numel = ROWS * widths[w];
        kernel_case c = kernel_case_of(FSDP_OP_GELU, attrs_of(ROWS, widths[w]), kernel_tolerance(dtypes[d]));
        double *drawn = kernel_normal(3, numel, wide ? 10 : 1); // wide enough that tanh saturates
        double *x = kernel_case_input(&c, dtypes[d], numel, FSDP_READ, drawn);
        double *y = kernel_case_output(&c, dtypes[d], numel);
        for (int64_t i = 0; i < numel; i++) y[i] = gelu(x[i]);
        kernel_case_check(&c);
        free(drawn);
      }
}

TEST(test_gelu_backward) {
  for (int d = 0; d < 2; d++)
    for (int w = 0; w < WIDTHS; w++)
      for (int wide = 0; wide < 2; wide++) {
        int64_t numel = ROWS * widths[w];
        kernel_case c =
            kernel_case_of(FSDP_OP_GELU_BACKWARD, attrs_of(ROWS, widths[w]), kernel_tolerance(dtypes[d]));
        double *drawn = kernel_normal(4, numel, wide ? 10 : 1);
        double *d_y = kernel_case_input(&c, dtypes[d], numel, FSDP_READ, NULL);
        double *x = kernel_case_input(&c, dtypes[d], numel, FSDP_UPDATE, drawn);
        for (int64_t i = 0; i < numel; i++) x[i] = d_y[i] * (gelu(x[i] + 1e-5) - gelu(x[i] - 1e-5)) / 2e-5;
        kernel_case_check(&c);
        free(drawn);
      }
}

// Values of which exp or the cube would overflow: x or nothing passes, and its slope is 1 or 0.
TEST(test_gelu_far_out) {
  static const double far[] = {-3e38, -1e20, -1e13, -1e4, -90, -17, 17, 90, 1e4, 1e13, 1e20, 3e38};
  static const double ones[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  for (int d = 0; d < 2; d++) {
    kernel_case c = kernel_case_of(FSDP_OP_GELU, attrs_of(1, 12), 0);
    kernel_case_input(&c, dtypes[d], 12, FSDP_READ, far);
    kernel_case_output(&c, dtypes[d], 12);
    kernel_case_run(&c);
    kernel_case s = kernel_case_of(FSDP_OP_GELU_BACKWARD, attrs_of(1, 12), 0);
    kernel_case_input(&s, dtypes[d], 12, FSDP_READ, ones);
    kernel_case_input(&s, dtypes[d], 12, FSDP_UPDATE, far);
    kernel_case_run(&s);
    for (int i = 0; i < 12; i++) {
      double x = kernel_value(&c.operands[0], i), y = kernel_value(&c.operands[1], i);
      double slope = kernel_value(&s.operands[1], i);
      assert_true(x > 0 ? y == x : fabs(y) <= 1e-37 * fabs(x)); // of the sigmoid, exp(-88) is left
      assert_true(x > 0 ? slope == 1 : fabs(slope) < 1e-30);
    }
    kernel_case_free(&c);
    kernel_case_free(&s);
  }
}

TEST(test_gelu_of_nan) {
  const double values[2] = {NAN, 1};
  for (int backward = 0; backward < 2; backward++) {
    kernel_case c = kernel_case_of(backward ? FSDP_OP_GELU_BACKWARD : FSDP_OP_GELU, attrs_of(1, 2), 0);
    kernel_case_input(&c, FSDP_F32, 2, FSDP_READ, backward ? NULL : values);
    if (backward) {
      kernel_case_input(&c, FSDP_F32, 2, FSDP_UPDATE, values);
    } else {
      kernel_case_output(&c, FSDP_F32, 2);
    }
    kernel_case_run(&c);
    const fsdp_view *result = &c.operands[1];
    assert_true(isnan(kernel_value(result, 0)) && isfinite(kernel_value(result, 1)));
    kernel_case_free(&c);
  }
}
