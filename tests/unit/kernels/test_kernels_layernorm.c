// LayerNorm and its gradients against its definition in double and central differences of it.
#include "runtime/base/check.h"
#include "tests/support/kernel_case.h"
#include "tests/support/unit_test.h"

#include <math.h>

enum { SHAPES = 4 };
static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};
static const int64_t shapes[SHAPES][3] = {{1, 1, 1}, {1, 17, 80}, {3, 5, 257}, {2, 33, 512}}; // B, T, C
static const double EPS = 1e-5;

static fsdp_op_attrs attrs_of(const int64_t *shape) {
  return (fsdp_op_attrs){.batch = shape[0], .seq = shape[1], .channels = shape[2], .eps = (float)EPS};
}

// The mean of a row, and 1 / sqrt of the mean of squared deviations plus eps.
static void moments(const double *h, int64_t C, double *mean, double *rstd) {
  double sum = 0, squares = 0;
  for (int64_t c = 0; c < C; c++) sum += h[c];
  *mean = sum / (double)C;
  for (int64_t c = 0; c < C; c++) squares += (h[c] - *mean) * (h[c] - *mean);
  *rstd = 1 / sqrt(squares / (double)C + (double)(float)EPS);
}

typedef struct expectation {
  const double *h, *weight, *bias;
  double *y, *mean, *rstd;
} expectation;

static void expect_rows(expectation e, int64_t N, int64_t C) {
  for (int64_t n = 0; n < N; n++) {
    const double *h = e.h + n * C;
    moments(h, C, &e.mean[n], &e.rstd[n]);
    for (int64_t c = 0; c < C; c++) e.y[n * C + c] = e.weight[c] * (h[c] - e.mean[n]) * e.rstd[n] + e.bias[c];
  }
}

// Adds h (of `values`; NULL: normal numbers), weight, bias and the outputs.
static void add_operands(kernel_case *c, fsdp_dtype dtype, const double *values) {
  int64_t N = c->attrs.batch * c->attrs.seq, C = c->attrs.channels;
  expectation e;
  e.h = kernel_case_input(c, dtype, N * C, FSDP_READ, values);
  e.weight = kernel_case_input(c, dtype, C, FSDP_READ, NULL);
  e.bias = kernel_case_input(c, dtype, C, FSDP_READ, NULL);
  e.y = kernel_case_output(c, dtype, N * C);
  e.mean = kernel_case_output(c, FSDP_F32, N);
  e.rstd = kernel_case_output(c, FSDP_F32, N);
  expect_rows(e, N, C);
}

TEST(test_layernorm) {
  for (int d = 0; d < 2; d++)
    for (int s = 0; s < SHAPES; s++) {
      kernel_case c = kernel_case_of(FSDP_OP_LAYERNORM, attrs_of(shapes[s]), kernel_tolerance(dtypes[d]));
      add_operands(&c, dtypes[d], NULL);
      kernel_case_check(&c);
    }
}

// Rows of mean 1000 and deviation 1: fp32 keeps 2e-5 of a deviation there. E[h^2] - mean^2 would keep none.
TEST(test_large_mean) {
  const int64_t shape[3] = {1, 7, 768};
  double *values = kernel_normal(5, 7 * 768, 1);
  for (int i = 0; i < 7 * 768; i++) values[i] += 1000;
  kernel_case c = kernel_case_of(FSDP_OP_LAYERNORM, attrs_of(shape), 1e-4);
  add_operands(&c, FSDP_F32, values);
  kernel_case_check(&c);
  free(values);
}

// The eps alone is under the root: deviations of 1e-3 are a tenth of it, and none at all gives the bias.
TEST(test_small_variance) {
  const int64_t shape[3] = {1, 2, 64};
  double *values = kernel_normal(6, 2 * 64, 1e-3);
  for (int i = 64; i < 2 * 64; i++) values[i] = 3;
  kernel_case c = kernel_case_of(FSDP_OP_LAYERNORM, attrs_of(shape), 1e-5);
  add_operands(&c, FSDP_F32, values);
  kernel_case_check(&c);
  free(values);
}

TEST(test_add_layernorm) {
  for (int d = 0; d < 2; d++)
    for (int s = 0; s < SHAPES; s++) {
      int64_t N = shapes[s][0] * shapes[s][1], C = shapes[s][2];
      kernel_case c = kernel_case_of(FSDP_OP_ADD_LAYERNORM, attrs_of(shapes[s]), kernel_tolerance(dtypes[d]));
      double *x = kernel_case_input(&c, dtypes[d], N * C, FSDP_READ, NULL);
      double *delta = kernel_case_input(&c, dtypes[d], N * C, FSDP_READ, NULL);
      double *weight = kernel_case_input(&c, dtypes[d], C, FSDP_READ, NULL);
      double *bias = kernel_case_input(&c, dtypes[d], C, FSDP_READ, NULL);
      double *h = kernel_case_output(&c, dtypes[d], N * C);
      double *y = kernel_case_output(&c, dtypes[d], N * C);
      double *mean = kernel_case_output(&c, FSDP_F32, N), *rstd = kernel_case_output(&c, FSDP_F32, N);
      for (int64_t i = 0; i < N * C; i++) h[i] = x[i] + delta[i];
      expect_rows((expectation){h, weight, bias, y, mean, rstd}, N, C);
      kernel_case_check(&c);
    }
}

// Copies operand `from` of one case to operand `to` of another.
static void copy_operand(const kernel_case *source, int from, kernel_case *c, int to) {
  const fsdp_view *view = &source->operands[from];
  assert_int_equal(view->numel, c->operands[to].numel);
  memcpy(c->initial[to], view->data, (size_t)(view->numel * fsdp_dtype_bytes(view->dtype)));
}

// A recomputed block takes the norm of the sum that was kept, which must give the same bits: the sum is
// rounded before it is normalised.
TEST(test_norm_of_kept_sum) {
  static const struct {
    fsdp_op_kind adds, alone;
    int params, results; // operands after x and delta, and after h
  } norms[] = {{FSDP_OP_ADD_RMSNORM, FSDP_OP_RMSNORM, 1, 2},
               {FSDP_OP_ADD_LAYERNORM, FSDP_OP_LAYERNORM, 2, 3}};
  for (int i = 0; i < 2; i++) {
    int64_t N = 17, C = 80;
    fsdp_op_attrs attrs = attrs_of(shapes[1]);
    int h = 2 + norms[i].params;
    kernel_case both = kernel_case_of(norms[i].adds, attrs, 0),
                alone = kernel_case_of(norms[i].alone, attrs, 0);
    for (int o = 0; o < 2; o++) kernel_case_input(&both, FSDP_BF16, N * C, FSDP_READ, NULL);
    for (int o = 0; o < norms[i].params; o++) kernel_case_input(&both, FSDP_BF16, C, FSDP_READ, NULL);
    kernel_case_output(&both, FSDP_BF16, N * C);
    kernel_case_input(&alone, FSDP_BF16, N * C, FSDP_READ, NULL);
    for (int o = 0; o < norms[i].params; o++) kernel_case_input(&alone, FSDP_BF16, C, FSDP_READ, NULL);
    for (int o = 0; o < norms[i].results; o++) {
      kernel_case_output(&both, o ? FSDP_F32 : FSDP_BF16, o ? N : N * C);
      kernel_case_output(&alone, o ? FSDP_F32 : FSDP_BF16, o ? N : N * C);
    }
    kernel_case_run(&both);
    copy_operand(&both, h, &alone, 0);
    for (int o = 0; o < norms[i].params; o++) copy_operand(&both, 2 + o, &alone, 1 + o);
    kernel_case_run(&alone);
    for (int o = 0; o < norms[i].results; o++) {
      const fsdp_view *first = &both.operands[h + 1 + o], *second = &alone.operands[1 + norms[i].params + o];
      assert_memory_equal(first->data, second->data, (size_t)(first->numel * fsdp_dtype_bytes(first->dtype)));
    }
    kernel_case_free(&both);
    kernel_case_free(&alone);
  }
}

// Central difference of sum(d_y * y) by h[c] of one row.
static double slope(double *h, const double *weight, const double *d_y, int64_t C, int64_t c) {
  double kept = h[c], values[2];
  for (int side = 0; side < 2; side++) {
    double mean, rstd, value = 0;
    h[c] = kept + (side ? -1e-4 : 1e-4);
    moments(h, C, &mean, &rstd);
    for (int64_t i = 0; i < C; i++) value += d_y[i] * weight[i] * (h[i] - mean) * rstd;
    values[side] = value;
  }
  h[c] = kept;
  return (values[0] - values[1]) / 2e-4;
}

static void check_backward(fsdp_dtype dtype, bool update, const int64_t *shape) {
  int64_t N = shape[0] * shape[1], C = shape[2];
  fsdp_dtype param_dtype = update ? FSDP_F32 : dtype; // both are allowed
  kernel_case c = kernel_case_of(FSDP_OP_LAYERNORM_BACKWARD, attrs_of(shape), kernel_tolerance(dtype));
  double *values = kernel_normal(3, N * C, 1), *moment[2] = {kernel_normal(1, N, 1), kernel_normal(1, N, 1)};
  for (int64_t i = 0; i < N * C; i++) values[i] += 2; // a mean that counts
  double *h = kernel_case_input(&c, dtype, N * C, FSDP_READ, values);
  for (int64_t n = 0; n < N; n++) moments(h + n * C, C, &moment[0][n], &moment[1][n]);
  double *mean = kernel_case_input(&c, FSDP_F32, N, FSDP_READ, moment[0]);
  double *rstd = kernel_case_input(&c, FSDP_F32, N, FSDP_READ, moment[1]);
  double *weight = kernel_case_input(&c, dtype, C, FSDP_READ, NULL);
  double *d_y = kernel_case_input(&c, dtype, N * C, FSDP_READ, NULL);
  double *d_h = kernel_case_result(&c, update, dtype, N * C);
  double *d_weight = kernel_case_result(&c, update, param_dtype, C);
  double *d_bias = kernel_case_result(&c, update, param_dtype, C);
  for (int64_t i = 0; i < N * C; i++) {
    int64_t row = i / C * C;
    d_h[i] += slope(h + row, weight, d_y + row, C, i % C);
    d_weight[i % C] += d_y[i] * (h[i] - mean[i / C]) * rstd[i / C];
    d_bias[i % C] += d_y[i];
  }
  kernel_case_check(&c);
  free(values), free(moment[0]), free(moment[1]);
}

TEST(test_layernorm_backward) {
  for (int d = 0; d < 2; d++)
    for (int update = 0; update < 2; update++)
      for (int s = 1; s < SHAPES - 1; s++) check_backward(dtypes[d], update, shapes[s]);
  const int64_t many_rows[3] = {2, 150, 9}; // several partial sums
  check_backward(FSDP_F32, false, many_rows);
  check_backward(FSDP_F32, true, many_rows);
}
