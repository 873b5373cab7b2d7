// RMSNorm of the heads of q and k, against references in double: its gradient by differences of its forward.
#include "runtime/base/check.h"
#include "tests/support/kernel_case.h"
#include "tests/support/unit_test.h"

#include <math.h>

static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};

// B, T, H, K, D: heads that fill no vector, one, and several; more rows than parts of the weights' gradients.
static const int64_t shapes[][5] = {{1, 1, 1, 1, 2},   {2, 9, 4, 2, 8}, {1, 17, 3, 1, 80}, {1, 5, 8, 8, 128},
                                    {1, 3, 2, 1, 256}, {2, 7, 5, 1, 6}, {1, 700, 2, 1, 4}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const double eps = (double)1e-5f;

typedef struct heads {
  int64_t N, H, K, D, Q;
  fsdp_op_attrs attrs;
} heads;

static heads heads_of(const int64_t *s) {
  heads h = {.N = s[0] * s[1], .H = s[2], .K = s[3], .D = s[4], .Q = (s[2] + 2 * s[3]) * s[4]};
  h.attrs = (fsdp_op_attrs){
      .batch = s[0], .seq = s[1], .heads = s[2], .kv_heads = s[3], .head_dim = s[4], .eps = 1e-5f};
  return h;
}

static double rstd_of(const double *x, int64_t D) {
  double sum = 0;
  for (int64_t d = 0; d < D; d++) sum += x[d] * x[d];
  return 1 / sqrt(sum / (double)D + eps);
}

TEST(test_qk_norm) {
  for (int d = 0; d < 2; d++)
    for (int s = 0; s < SHAPES; s++) {
      heads h = heads_of(shapes[s]);
      kernel_case c = kernel_case_of(FSDP_OP_QK_NORM, h.attrs, kernel_tolerance(dtypes[d]));
      double *qkv = kernel_case_input(&c, dtypes[d], h.N * h.Q, FSDP_READ, NULL);
      double *weights[2];
      for (int w = 0; w < 2; w++) weights[w] = kernel_case_input(&c, dtypes[d], h.D, FSDP_READ, NULL);
      double *y = kernel_case_output(&c, dtypes[d], h.N * h.Q);
      double *rstd = kernel_case_output(&c, FSDP_F32, h.N * (h.H + h.K));
      for (int64_t i = 0; i < h.N * h.Q; i++) {
        int64_t n = i / h.Q, head = i % h.Q / h.D;
        y[i] = qkv[i];
        if (head >= h.H + h.K) continue;
        double factor = rstd_of(qkv + i / h.D * h.D, h.D);
        y[i] *= weights[head >= h.H][i % h.D] * factor;
        rstd[n * (h.H + h.K) + head] = factor;
      }
      kernel_case_check(&c);
    }
}

// Of v every bit: a copy, whatever it holds.
TEST(test_values_are_copied) {
  for (int d = 0; d < 2; d++) {
    heads h = heads_of((const int64_t[]){1, 3, 2, 1, 12});
    kernel_case c = kernel_case_of(FSDP_OP_QK_NORM, h.attrs, 0);
    double *drawn = kernel_normal(1, h.N * h.Q, 1);
    kernel_case_input(&c, dtypes[d], h.N * h.Q, FSDP_READ, drawn);
    for (int w = 0; w < 2; w++) kernel_case_input(&c, dtypes[d], h.D, FSDP_READ, NULL);
    kernel_case_output(&c, dtypes[d], h.N * h.Q);
    kernel_case_output(&c, FSDP_F32, h.N * (h.H + h.K));
    kernel_case_run(&c);
    for (int64_t i = 0; i < h.N * h.Q; i++)
      if (i % h.Q >= (h.H + h.K) * h.D)
        assert_true(kernel_value(&c.operands[3], i) == kernel_value(&c.operands[0], i));
    kernel_case_free(&c);
    free(drawn);
  }
}

// Central difference of sum(d_y * y) by x[d] of one head.
static double slope(double *x, const double *weight, const double *d_y, int64_t D, int64_t d) {
  double kept = x[d], values[2] = {0};
  for (int side = 0; side < 2; side++) {
    x[d] = kept + (side ? -1e-4 : 1e-4);
    double rstd = rstd_of(x, D);
    for (int64_t i = 0; i < D; i++) values[side] += d_y[i] * weight[i] * x[i] * rstd;
  }
  x[d] = kept;
  return (values[0] - values[1]) / 2e-4;
}

static void check_backward(heads h, fsdp_dtype dtype, fsdp_dtype weight_dtype, bool update) {
  int64_t heads_normed = h.H + h.K, normed = h.N * h.Q - h.K * h.D; // the last row's v is not touched
  kernel_case c = kernel_case_of(FSDP_OP_QK_NORM_BACKWARD, h.attrs, kernel_tolerance(dtype));
  double *qkv = kernel_case_input(&c, dtype, h.N * h.Q, FSDP_READ, NULL);
  double *factors = kernel_normal(1, h.N * heads_normed, 1), *weights[2], *d_weights[2];
  for (int64_t i = 0; i < h.N * heads_normed; i++)
    factors[i] = rstd_of(qkv + i / heads_normed * h.Q + i % heads_normed * h.D, h.D);
  double *rstd = kernel_case_input(&c, FSDP_F32, h.N * heads_normed, FSDP_READ, factors);
  for (int w = 0; w < 2; w++) weights[w] = kernel_case_input(&c, dtype, h.D, FSDP_READ, NULL);
  double *d_qkv = kernel_case_input(&c, dtype, h.N * h.Q, FSDP_UPDATE, NULL);
  for (int w = 0; w < 2; w++) d_weights[w] = kernel_case_result(&c, update, weight_dtype, h.D);
  kernel_case_output(&c, FSDP_F32, fsdp_op_workspace_bytes(FSDP_OP_CPU, c.kind, &c.attrs, 0) / 4);
  c.parts[0] = c.parts[4] = (kernel_range){0, normed};
  double *d_y = fsdp_alloc((size_t)h.D * sizeof *d_y);
  for (int64_t n = 0; n < h.N; n++)
    for (int64_t head = 0; head < heads_normed; head++) {
      double *x = qkv + n * h.Q + head * h.D, *d_x = d_qkv + n * h.Q + head * h.D;
      int role = head >= h.H;
      for (int64_t d = 0; d < h.D; d++) {
        d_y[d] = d_x[d];
        d_weights[role][d] += d_y[d] * x[d] * rstd[n * heads_normed + head];
      }
      for (int64_t d = 0; d < h.D; d++) d_x[d] = slope(x, weights[role], d_y, h.D, d);
    }
  kernel_case_check(&c);
  free(factors), free(d_y);
}

TEST(test_qk_norm_backward) {
  for (int d = 0; d < 2; d++)
    for (int s = 0; s < SHAPES; s++) {
      check_backward(heads_of(shapes[s]), dtypes[d], dtypes[d], false);
      check_backward(heads_of(shapes[s]), dtypes[d], FSDP_F32, true);
    }
}
