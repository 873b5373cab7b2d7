// Causal attention, forward and backward, against a reference in double that holds whole T x T matrices.
#include "runtime/base/check.h"
#include "tests/support/kernel_case.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static double tolerance(fsdp_dtype dtype) {
  return dtype == FSDP_F32 ? 1e-5 : 1e-2;
}

static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};

// B, T, H, K, D: groups of 1, 4, 8; sequences below, at and above a block; head dimensions that fill no
// vector.
static const int64_t shapes[][5] = {
    {1, 1, 1, 1, 64},   {3, 17, 4, 1, 64}, {1, 128, 8, 8, 64}, {2, 65, 8, 1, 80},  {1, 200, 4, 2, 128},
    {1, 1000, 1, 1, 8}, {2, 63, 3, 3, 5},  {1, 64, 4, 4, 1},   {3, 128, 8, 2, 20}, {2, 2, 2, 1, 16},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

typedef struct heads {
  int64_t B, T, H, K, D, Q;
} heads;

static heads heads_of(const int64_t *s) {
  return (heads){s[0], s[1], s[2], s[3], s[4], (s[2] + 2 * s[3]) * s[4]};
}

static fsdp_op_attrs attrs_of(heads h) {
  return (fsdp_op_attrs){.batch = h.B, .seq = h.T, .heads = h.H, .kv_heads = h.K, .head_dim = h.D};
}

// Offsets in q|k|v of position t, head or key/value head `head`; in o.
static int64_t q_at(heads h, int64_t b, int64_t t, int64_t head) {
  return (b * h.T + t) * h.Q + head * h.D;
}
static int64_t k_at(heads h, int64_t b, int64_t t, int64_t head) {
  return q_at(h, b, t, h.H + head / (h.H / h.K));
}
static int64_t v_at(heads h, int64_t b, int64_t t, int64_t head) {
  return q_at(h, b, t, h.H + h.K + head / (h.H / h.K));
}
static int64_t o_at(heads h, int64_t b, int64_t t, int64_t head) {
  return ((b * h.T + t) * h.H + head) * h.D;
}

static double dot(const double *a, const double *b, int64_t D) {
  double sum = 0;
  for (int64_t d = 0; d < D; d++) sum += a[d] * b[d];
  return sum;
}

// Probabilities of query t over keys 0 .. t; returns lse.
static double probabilities(heads h, const double *qkv, int64_t b, int64_t t, int64_t head, double *p) {
  double most = -1e300, sum = 0;
  for (int64_t s = 0; s <= t; s++) {
    p[s] = dot(qkv + q_at(h, b, t, head), qkv + k_at(h, b, s, head), h.D) / sqrt((double)h.D);
    most = fmax(most, p[s]);
  }
  for (int64_t s = 0; s <= t; s++) sum += p[s] = exp(p[s] - most);
  for (int64_t s = 0; s <= t; s++) p[s] /= sum;
  return most + log(sum);
}

static void forward(heads h, const double *qkv, double *o, double *lse) {
  double *p = fsdp_alloc((size_t)h.T * sizeof *p);
  for (int64_t b = 0; b < h.B; b++)
    for (int64_t head = 0; head < h.H; head++)
      for (int64_t t = 0; t < h.T; t++) {
        lse[(b * h.H + head) * h.T + t] = probabilities(h, qkv, b, t, head, p);
        double *out = o + o_at(h, b, t, head);
        for (int64_t d = 0; d < h.D; d++) out[d] = 0;
        for (int64_t s = 0; s <= t; s++)
          for (int64_t d = 0; d < h.D; d++) out[d] += p[s] * qkv[v_at(h, b, s, head) + d];
      }
  free(p);
}

static void backward(heads h, const double *qkv, const double *d_o, double *d_qkv) {
  double *p = fsdp_alloc((size_t)h.T * sizeof *p), *d_p = fsdp_alloc((size_t)h.T * sizeof *d_p);
  for (int64_t i = 0; i < h.B * h.T * h.Q; i++) d_qkv[i] = 0;
  for (int64_t b = 0; b < h.B; b++)
    for (int64_t head = 0; head < h.H; head++)
      for (int64_t t = 0; t < h.T; t++) {
        const double *d_out = d_o + o_at(h, b, t, head);
        double mean = 0;
        probabilities(h, qkv, b, t, head, p);
        for (int64_t s = 0; s <= t; s++) {
          d_p[s] = dot(d_out, qkv + v_at(h, b, s, head), h.D);
          mean += p[s] * d_p[s];
        }
        for (int64_t s = 0; s <= t; s++) {
          double d_score = p[s] * (d_p[s] - mean) / sqrt((double)h.D);
          int64_t q = q_at(h, b, t, head), k = k_at(h, b, s, head), v = v_at(h, b, s, head);
          for (int64_t d = 0; d < h.D; d++) {
            d_qkv[v + d] += p[s] * d_out[d];
            d_qkv[q + d] += d_score * qkv[k + d];
            d_qkv[k + d] += d_score * qkv[q + d];
          }
        }
      }
  free(p), free(d_p);
}

static void test_attention(void **state) {
  (void)state;
  for (int d = 0; d < 2; d++)
    for (int s = 0; s < SHAPES; s++) {
      heads h = heads_of(shapes[s]);
      kernel_case c = kernel_case_of(FSDP_OP_ATTENTION, attrs_of(h), tolerance(dtypes[d]));
      double *wide = kernel_normal(9, h.B * h.T * h.Q, 1.5); // some rows are nearly one-hot
      double *qkv = kernel_case_input(&c, dtypes[d], h.B * h.T * h.Q, FSDP_READ, wide);
      double *o = kernel_case_output(&c, dtypes[d], h.B * h.T * h.H * h.D);
      double *lse = kernel_case_output(&c, FSDP_F32, h.B * h.H * h.T);
      forward(h, qkv, o, lse);
      kernel_case_check(&c);
      free(wide);
    }
}

static void check_backward(heads h, fsdp_dtype dtype) {
  int64_t N = h.B * h.T, statistics = h.B * h.H * h.T;
  kernel_case c = kernel_case_of(FSDP_OP_ATTENTION_BACKWARD, attrs_of(h), tolerance(dtype));
  double *qkv = kernel_case_input(&c, dtype, N * h.Q, FSDP_READ, NULL);
  double *o_values = fsdp_alloc((size_t)(N * h.H * h.D) * sizeof(double));
  double *lse_values = fsdp_alloc((size_t)statistics * sizeof(double));
  forward(h, qkv, o_values, lse_values);
  kernel_case_input(&c, dtype, N * h.H * h.D, FSDP_READ, o_values);
  kernel_case_input(&c, FSDP_F32, statistics, FSDP_READ, lse_values);
  double *d_o = kernel_case_input(&c, dtype, N * h.H * h.D, FSDP_READ, NULL);
  double *d_qkv = kernel_case_output(&c, dtype, N * h.Q);
  kernel_case_output(&c, FSDP_F32, statistics); // workspace
  backward(h, qkv, d_o, d_qkv);
  kernel_case_check(&c);
  free(o_values), free(lse_values);
}

static void test_attention_backward(void **state) {
  (void)state;
  for (int d = 0; d < 2; d++)
    for (int s = 0; s < SHAPES; s++) check_backward(heads_of(shapes[s]), dtypes[d]);
}

// More keys than a task holds gradients of at a time (kernels/cpu/attention/attention_backward.c).
static void test_attention_backward_ranges(void **state) {
  (void)state;
  static const int64_t wide[] = {1, 300, 1, 1, 640};
  check_backward(heads_of(wide), FSDP_F32);
  check_backward(heads_of(wide), FSDP_BF16);
}

// The reference's backward by central differences of its forward.
static void test_reference_slope(void **state) {
  (void)state;
  heads h = heads_of((const int64_t[]){1, 5, 4, 2, 3});
  int64_t size = h.B * h.T * h.Q, out = h.B * h.T * h.H * h.D;
  double *qkv = kernel_normal(1, size, 1), *d_o = kernel_normal(2, out, 1), *o = kernel_normal(3, out, 1);
  double *lse = kernel_normal(4, h.B * h.H * h.T, 1), *d_qkv = kernel_normal(5, size, 1);
  backward(h, qkv, d_o, d_qkv);
  for (int64_t i = 0; i < size; i++) {
    double kept = qkv[i], values[2];
    for (int side = 0; side < 2; side++) {
      qkv[i] = kept + (side ? -1e-5 : 1e-5);
      forward(h, qkv, o, lse);
      values[side] = dot(o, d_o, out);
    }
    qkv[i] = kept;
    assert_true(fabs((values[0] - values[1]) / 2e-5 - d_qkv[i]) < 1e-7);
  }
  free(qkv), free(d_o), free(o), free(lse), free(d_qkv);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_attention),
      cmocka_unit_test(test_attention_backward),
      cmocka_unit_test(test_attention_backward_ranges),
      cmocka_unit_test(test_reference_slope),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
