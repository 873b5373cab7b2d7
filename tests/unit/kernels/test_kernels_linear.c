// Linear layers and the fused linear + cross-entropy against naive references in double.
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

// B, T, in, out, stride, offset: of a product that owns its rows, and of slices of q|k|v.
static const int64_t linears[][6] = {
    {1, 1, 1, 1, 1, 0},         {1, 17, 33, 65, 65, 0},   {3, 17, 80, 64, 192, 64},
    {2, 300, 40, 530, 600, 61}, {1, 7, 300, 129, 130, 1},
};

static fsdp_op_attrs linear_attrs(const int64_t *s) {
  return (fsdp_op_attrs){.batch = s[0],
                         .seq = s[1],
                         .in_features = s[2],
                         .out_features = s[3],
                         .out_stride = s[4],
                         .out_offset = s[5]};
}

// An operand that is accumulated into, or overwritten and then expected to start from zero.
static double *accumulator(kernel_case *c, fsdp_dtype dtype, int64_t numel, bool update) {
  if (update) return kernel_case_input(c, dtype, numel, FSDP_UPDATE, NULL);
  double *expected = kernel_case_output(c, dtype, numel);
  for (int64_t i = 0; i < numel; i++) expected[i] = 0;
  return expected;
}

static void test_linear(void **state) {
  (void)state;
  for (int d = 0; d < 3; d++) // bf16 operands may give an fp32 result
    for (int update = 0; update < 2; update++)
      for (int l = 0; l < 5; l++) {
        const int64_t *s = linears[l];
        int64_t N = s[0] * s[1], in = s[2], out = s[3], stride = s[4], offset = s[5];
        kernel_case c = kernel_case_of(FSDP_OP_LINEAR, linear_attrs(s), tolerance(dtypes[d > 0]));
        double *x = kernel_case_input(&c, dtypes[d > 0], N * in, FSDP_READ, NULL);
        double *weight = kernel_case_input(&c, dtypes[d > 0], out * in, FSDP_READ, NULL);
        double *y = update ? kernel_case_input(&c, dtypes[d == 1], N * stride, FSDP_UPDATE, NULL)
                           : kernel_case_output(&c, dtypes[d == 1], N * stride);
        c.sparse[2] = stride > out;
        for (int64_t n = 0; n < N; n++)
          for (int64_t o = 0; o < out; o++) {
            double sum = update ? y[n * stride + offset + o] : 0;
            for (int64_t i = 0; i < in; i++) sum += x[n * in + i] * weight[o * in + i];
            y[n * stride + offset + o] = sum;
          }
        kernel_case_check(&c);
      }
}

static void test_linear_backward_input(void **state) {
  (void)state;
  for (int d = 0; d < 2; d++)
    for (int update = 0; update < 2; update++)
      for (int l = 0; l < 5; l++) {
        const int64_t *s = linears[l];
        int64_t N = s[0] * s[1], in = s[2], out = s[3], stride = s[4], offset = s[5];
        kernel_case c = kernel_case_of(FSDP_OP_LINEAR_BACKWARD_INPUT, linear_attrs(s), tolerance(dtypes[d]));
        double *d_y = kernel_case_input(&c, dtypes[d], N * stride, FSDP_READ, NULL);
        double *weight = kernel_case_input(&c, dtypes[d], out * in, FSDP_READ, NULL);
        double *d_x = accumulator(&c, dtypes[d], N * in, update);
        c.sparse[0] = stride > out;
        for (int64_t n = 0; n < N; n++)
          for (int64_t o = 0; o < out; o++)
            for (int64_t i = 0; i < in; i++)
              d_x[n * in + i] += d_y[n * stride + offset + o] * weight[o * in + i];
        kernel_case_check(&c);
      }
}

static void test_linear_backward_weight(void **state) {
  (void)state;
  for (int d = 0; d < 3; d++) // the weight's gradient may be fp32 beside bf16 activations
    for (int update = 0; update < 2; update++)
      for (int l = 0; l < 5; l++) {
        const int64_t *s = linears[l];
        int64_t N = s[0] * s[1], in = s[2], out = s[3], stride = s[4], offset = s[5];
        kernel_case c =
            kernel_case_of(FSDP_OP_LINEAR_BACKWARD_WEIGHT, linear_attrs(s), tolerance(dtypes[d > 0]));
        double *d_y = kernel_case_input(&c, dtypes[d > 0], N * stride, FSDP_READ, NULL);
        double *x = kernel_case_input(&c, dtypes[d > 0], N * in, FSDP_READ, NULL);
        double *d_weight = accumulator(&c, dtypes[d == 1], out * in, update);
        c.sparse[0] = stride > out;
        for (int64_t n = 0; n < N; n++)
          for (int64_t o = 0; o < out; o++)
            for (int64_t i = 0; i < in; i++)
              d_weight[o * in + i] += d_y[n * stride + offset + o] * x[n * in + i];
        kernel_case_check(&c);
      }
}

// N, C, V, rows of a chunk.
static const int64_t heads[][4] = {{1, 8, 1, 1}, {17, 33, 257, 5}, {128, 64, 257, 128}, {6, 16, 32001, 4}};

typedef struct head_reference {
  int64_t N, C, V;
  const double *x, *weight, *targets;
  double count;
} head_reference;

static double row_loss(const head_reference *r, int64_t n, double *softmax) {
  double most = -1e300, sum = 0;
  for (int64_t v = 0; v < r->V; v++) {
    softmax[v] = 0;
    for (int64_t c = 0; c < r->C; c++) softmax[v] += r->x[n * r->C + c] * r->weight[v * r->C + c];
    most = fmax(most, softmax[v]);
  }
  double target = softmax[(int64_t)r->targets[n]];
  for (int64_t v = 0; v < r->V; v++) sum += softmax[v] = exp(softmax[v] - most);
  for (int64_t v = 0; v < r->V; v++) softmax[v] /= sum;
  return log(sum) + most - target;
}

static double *targets_of(int64_t N, int64_t V) {
  double *targets = fsdp_alloc((size_t)N * sizeof *targets);
  for (int64_t n = 0; n < N; n++)
    targets[n] = n % 5 == 3 ? FSDP_TARGET_IGNORED : (double)((n * 31 + V - 1) % V);
  return targets;
}

static void check_head(int h, fsdp_dtype dtype, bool backward, bool update, double count) {
  int64_t N = heads[h][0], C = heads[h][1], V = heads[h][2];
  fsdp_op_attrs attrs = {.batch = 1, .seq = N, .channels = C, .vocabulary = V, .chunk_rows = heads[h][3]};
  fsdp_op_kind kind = backward ? FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD : FSDP_OP_LINEAR_CROSS_ENTROPY;
  kernel_case c = kernel_case_of(kind, attrs, tolerance(dtype));
  double *small = kernel_normal(5, V * C, 0.3), *drawn = targets_of(N, V);
  head_reference r = {N, C, V, NULL, NULL, NULL, fmax(count, 1)};
  r.x = kernel_case_input(&c, dtype, N * C, FSDP_READ, NULL);
  r.weight = kernel_case_input(&c, dtype, V * C, FSDP_READ, small);
  r.targets = kernel_case_input(&c, FSDP_I32, N, FSDP_READ, drawn);
  kernel_case_input(&c, FSDP_F32, 1, FSDP_READ, &count);
  double *loss = accumulator(&c, FSDP_F32, 1, update);
  double *d_x = backward ? accumulator(&c, dtype, N * C, false) : NULL;
  fsdp_dtype weight_dtype = update ? FSDP_F32 : dtype;
  double *d_weight = backward ? accumulator(&c, weight_dtype, V * C, update) : NULL;
  kernel_case_output(&c, FSDP_F32, attrs.chunk_rows * V); // its contents afterwards are nobody's business
  double *softmax = fsdp_alloc((size_t)V * sizeof *softmax);
  for (int64_t n = 0; n < N; n++) {
    if (r.targets[n] == FSDP_TARGET_IGNORED) continue;
    loss[0] += row_loss(&r, n, softmax) / r.count;
    for (int64_t v = 0; backward && v < V; v++) {
      double d_logit = (softmax[v] - (v == (int64_t)r.targets[n])) / r.count;
      for (int64_t i = 0; i < C; i++) {
        d_x[n * C + i] += d_logit * r.weight[v * C + i];
        d_weight[v * C + i] += d_logit * r.x[n * C + i];
      }
    }
  }
  if (V == 1) c.tolerance = 1e-4; // everything is zero but for rounding, so the error is absolute
  kernel_case_check(&c);
  free(small), free(drawn), free(softmax);
}

static void test_linear_cross_entropy(void **state) {
  (void)state;
  for (int d = 0; d < 2; d++)
    for (int h = 0; h < 4; h++)
      for (int update = 0; update < 2; update++) check_head(h, dtypes[d], false, update, 11);
  check_head(1, FSDP_F32, false, false, 0); // no target counted anywhere: the divisor is 1
}

static void test_linear_cross_entropy_backward(void **state) {
  (void)state;
  for (int d = 0; d < 2; d++)
    for (int h = 0; h < 4; h++)
      for (int update = 0; update < 2; update++) check_head(h, dtypes[d], true, update, 11);
}

// The reference's own gradient of x by central differences, so that it is not only its own word.
static void test_head_slope(void **state) {
  (void)state;
  int64_t C = 8, V = 11;
  double *x = kernel_normal(1, C, 1), *weight = kernel_normal(2, V * C, 1), target = 4, softmax[11];
  head_reference r = {1, C, V, x, weight, &target, 1};
  for (int64_t i = 0; i < C; i++) {
    double kept = x[i], slope = 0, values[2];
    row_loss(&r, 0, softmax);
    for (int64_t v = 0; v < V; v++) slope += (softmax[v] - (v == 4)) * weight[v * C + i];
    x[i] = kept + 1e-5, values[0] = row_loss(&r, 0, softmax);
    x[i] = kept - 1e-5, values[1] = row_loss(&r, 0, softmax);
    x[i] = kept;
    assert_true(fabs((values[0] - values[1]) / 2e-5 - slope) < 1e-8);
  }
  free(x), free(weight);
}

// ||d_weight - reference|| / ||reference||, the reference in double on the same operands.
static double head_gradient_error(int64_t chunk_rows, fsdp_dtype gradient) {
  enum { N = 16384, C = 16, V = 48 };
  fsdp_op_attrs attrs = {.batch = 1, .seq = N, .channels = C, .vocabulary = V, .chunk_rows = chunk_rows};
  kernel_case c = kernel_case_of(FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD, attrs, 0);
  double *small = kernel_normal(5, V * C, 0.3), *drawn = targets_of(N, V), count = N, *exact, *softmax;
  exact = fsdp_alloc_zeroed(V * C, sizeof *exact), softmax = fsdp_alloc(V * sizeof *softmax);
  head_reference r = {N, C, V, NULL, NULL, NULL, N};
  r.x = kernel_case_input(&c, FSDP_BF16, N * C, FSDP_READ, NULL);
  r.weight = kernel_case_input(&c, FSDP_BF16, V * C, FSDP_READ, small);
  r.targets = kernel_case_input(&c, FSDP_I32, N, FSDP_READ, drawn);
  kernel_case_input(&c, FSDP_F32, 1, FSDP_READ, &count);
  kernel_case_output(&c, FSDP_F32, 1);
  kernel_case_output(&c, FSDP_BF16, N * C);
  kernel_case_output(&c, gradient, V * C);
  kernel_case_output(&c, FSDP_F32, attrs.chunk_rows * V);
  for (int64_t n = 0; n < N; n++) {
    if (r.targets[n] == FSDP_TARGET_IGNORED) continue;
    row_loss(&r, n, softmax);
    for (int64_t v = 0; v < V; v++)
      for (int64_t i = 0; i < C; i++)
        exact[v * C + i] += (softmax[v] - (v == (int64_t)r.targets[n])) / N * r.x[n * C + i];
  }
  kernel_case_run(&c);
  double error = 0, size = 0;
  for (int64_t i = 0; i < V * C; i++) {
    double off = kernel_value(&c.operands[6], i) - exact[i];
    error += off * off, size += exact[i] * exact[i];
  }
  kernel_case_free(&c);
  free(small), free(drawn), free(exact), free(softmax);
  return sqrt(error / size);
}

// A bf16 gradient is rounded after each chunk: four chunks lose little more than one rounding, the sixteen of
// an fp32 gradient's chunks nearly twice as much. Of partial sums that grow as the root of their length, K
// roundings leave sqrt((K + 1) / 2) times the error of one: 2.9 and 1.6.
static void test_chunks_of_a_bf16_gradient(void **state) {
  (void)state;
  const int64_t N = 16384, V = 48, short_rows = fsdp_op_chunk_rows(N, V, FSDP_F32),
                long_rows = fsdp_op_chunk_rows(N, V, FSDP_BF16);
  assert_int_equal(short_rows, 1024);
  assert_int_equal(long_rows, 4096);
  double fp32 = head_gradient_error(short_rows, FSDP_F32), once = head_gradient_error(N, FSDP_BF16);
  double sixteen = head_gradient_error(short_rows, FSDP_BF16),
         four = head_gradient_error(long_rows, FSDP_BF16);
  print_message("error of d_weight: fp32 %.2e; bf16 in 1 chunk %.2e, 4 %.2e, 16 %.2e\n", fp32, once, four,
                sixteen);
  assert_true(fp32 < once && once < four && four < sixteen);
  assert_true(four < 2 * once && four < 0.7 * sixteen);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_linear),
      cmocka_unit_test(test_linear_backward_input),
      cmocka_unit_test(test_linear_backward_weight),
      cmocka_unit_test(test_linear_cross_entropy),
      cmocka_unit_test(test_linear_cross_entropy_backward),
      cmocka_unit_test(test_chunks_of_a_bf16_gradient),
      cmocka_unit_test(test_head_slope),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
