// Linear layers and the fused linear + cross-entropy against naive references in double.
#include "runtime/base/check.h"
#include "tests/support/draws.h"
#include "tests/support/kernel_case.h"
#include "tests/support/unit_test.h"

#include <math.h>

static double tolerance(fsdp_dtype dtype) {
  return dtype == FSDP_F32 ? 1e-5 : 1e-2;
}

static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};

// B, T, in, out, stride, offset: of a product that owns its rows, and of slices of q|k|v.
static const int64_t linears[][6] = {
    {1, 1, 1, 1, 1, 0},         {1, 17, 33, 65, 65, 0},   {3, 17, 80, 64, 192, 64},
    {2, 300, 40, 530, 600, 61}, {1, 7, 300, 129, 130, 1},
};

typedef struct layer {
  int64_t N, in, out, stride, offset;
  bool transposed;
} layer;

// Where a weight has the element of output o and input i.
static int64_t at(const layer *l, int64_t o, int64_t i) {
  return l->transposed ? i * l->out + o : o * l->in + i;
}

static kernel_case layer_case(const layer *l, int shape, fsdp_op_kind kind, fsdp_dtype dtype) {
  fsdp_op_attrs attrs = {.batch = linears[shape][0],
                         .seq = linears[shape][1],
                         .in_features = l->in,
                         .out_features = l->out,
                         .out_stride = l->stride,
                         .out_offset = l->offset,
                         .weight_transposed = l->transposed};
  return kernel_case_of(kind, attrs, tolerance(dtype));
}

// Runs `check` on all shapes and ways to store the weight, with fp32, with bf16 operands and an fp32 result,
// and with bf16; overwriting and adding.
static void for_layers(void (*check)(const layer *l, int shape, fsdp_dtype dtype, fsdp_dtype result,
                                     bool update)) {
  for (int d = 0; d < 3; d += test_stride(2))
    for (int update = 0; update < 2; update++)
      for (int shape = 0; shape < 5; shape += test_stride(2))
        for (int transposed = 0; transposed < 2; transposed++) {
          const int64_t *s = linears[shape];
          const layer l = {s[0] * s[1], s[2], s[3], s[4], s[5], transposed};
          check(&l, shape, dtypes[d > 0], dtypes[d == 2], update);
        }
}

// An operand that is accumulated into, or overwritten and then expected to start from zero.
static double *accumulator(kernel_case *c, fsdp_dtype dtype, int64_t numel, bool update) {
  if (update) return kernel_case_input(c, dtype, numel, FSDP_UPDATE, NULL);
  double *expected = kernel_case_output(c, dtype, numel);
  for (int64_t i = 0; i < numel; i++) expected[i] = 0;
  return expected;
}

// y, of which the op writes some columns; the others keep what they hold.
static double *columns(kernel_case *c, const layer *l, fsdp_dtype dtype, bool update) {
  c->sparse[c->operand_count] = l->stride > l->out;
  return update ? kernel_case_input(c, dtype, l->N * l->stride, FSDP_UPDATE, NULL)
                : kernel_case_output(c, dtype, l->N * l->stride);
}

// y (+)= x * weight^T + bias; no bias if NULL.
static void add_products(const layer *l, const double *x, const double *weight, const double *bias,
                         bool update, double *y) {
  for (int64_t n = 0; n < l->N; n++)
    for (int64_t o = 0; o < l->out; o++) {
      double sum = (update ? y[n * l->stride + l->offset + o] : 0) + (bias ? bias[o] : 0);
      for (int64_t i = 0; i < l->in; i++) sum += x[n * l->in + i] * weight[at(l, o, i)];
      y[n * l->stride + l->offset + o] = sum;
    }
}

static void check_linear(const layer *l, int shape, fsdp_dtype dtype, fsdp_dtype result, bool update) {
  kernel_case c = layer_case(l, shape, FSDP_OP_LINEAR, dtype);
  double *x = kernel_case_input(&c, dtype, l->N * l->in, FSDP_READ, NULL);
  double *weight = kernel_case_input(&c, dtype, l->out * l->in, FSDP_READ, NULL);
  add_products(l, x, weight, NULL, update, columns(&c, l, result, update));
  kernel_case_check(&c);
}

TEST(test_linear) {
  for_layers(check_linear);
}

static void check_linear_bias(const layer *l, int shape, fsdp_dtype dtype, fsdp_dtype result, bool update) {
  if (update) return; // it never adds
  kernel_case c = layer_case(l, shape, FSDP_OP_LINEAR_BIAS, dtype);
  double *x = kernel_case_input(&c, dtype, l->N * l->in, FSDP_READ, NULL);
  double *weight = kernel_case_input(&c, dtype, l->out * l->in, FSDP_READ, NULL);
  double *large = kernel_normal(9, l->out, 30); // as large as the products
  double *bias = kernel_case_input(&c, result, l->out, FSDP_READ, large);
  add_products(l, x, weight, bias, false, columns(&c, l, result, false));
  kernel_case_check(&c);
  free(large);
}

TEST(test_linear_bias) {
  for_layers(check_linear_bias);
}

// A row of other columns beside the product's in the residual too: it lies as the sum does.
static void check_sum(const layer *l, int shape, fsdp_dtype dtype, fsdp_dtype result, bool biased) {
  kernel_case c = layer_case(l, shape, biased ? FSDP_OP_LINEAR_BIAS_ADD : FSDP_OP_LINEAR_ADD, dtype);
  double *x = kernel_case_input(&c, dtype, l->N * l->in, FSDP_READ, NULL);
  double *weight = kernel_case_input(&c, dtype, l->out * l->in, FSDP_READ, NULL);
  double *large = kernel_normal(9, l->out, 30), *larger = kernel_normal(10, l->N * l->stride, 20);
  double *bias = biased ? kernel_case_input(&c, result, l->out, FSDP_READ, large) : NULL;
  c.sparse[c.operand_count] = l->stride > l->out;
  double *residual = kernel_case_input(&c, result, l->N * l->stride, FSDP_READ, larger);
  double *h = columns(&c, l, result, false);
  add_products(l, x, weight, bias, false, h);
  for (int64_t n = 0; n < l->N; n++)
    for (int64_t o = 0; o < l->out; o++)
      h[n * l->stride + l->offset + o] += residual[n * l->stride + l->offset + o];
  kernel_case_check(&c);
  free(large);
  free(larger);
}

TEST(test_sums) {
  for_layers(check_sum);
}

// 16 * 16 + 1 * 1 + 1 = 258, which bf16 has; of 257 it keeps 256, and of 256 + 1 too.
TEST(test_residual_is_rounded_once) {
  enum { IN = 2 };
  const double x[IN] = {16, 1}, residual = 1;
  fsdp_op_attrs attrs = {.batch = 1, .seq = 1, .in_features = IN, .out_features = 1, .out_stride = 1};
  kernel_case c = kernel_case_of(FSDP_OP_LINEAR_ADD, attrs, 0);
  kernel_case_input(&c, FSDP_BF16, IN, FSDP_READ, x);
  kernel_case_input(&c, FSDP_BF16, IN, FSDP_READ, x);
  kernel_case_input(&c, FSDP_BF16, 1, FSDP_READ, &residual);
  kernel_case_output(&c, FSDP_BF16, 1)[0] = 258;
  kernel_case_check(&c);
}

// 16 * 16 + 1 * 1 + 1 = 258, which bf16 has; of 257 it keeps 256, and of 256 + 1 too.
TEST(test_bias_is_rounded_once) {
  enum { IN = 2 };
  const double x[IN] = {16, 1}, bias = 1;
  fsdp_op_attrs attrs = {.batch = 1, .seq = 1, .in_features = IN, .out_features = 1, .out_stride = 1};
  kernel_case c = kernel_case_of(FSDP_OP_LINEAR_BIAS, attrs, 0);
  kernel_case_input(&c, FSDP_BF16, IN, FSDP_READ, x);
  kernel_case_input(&c, FSDP_BF16, IN, FSDP_READ, x);
  kernel_case_input(&c, FSDP_BF16, 1, FSDP_READ, &bias);
  kernel_case_output(&c, FSDP_BF16, 1)[0] = 258;
  kernel_case_check(&c);
}

TEST(test_add_bias) {
  // Sequences, positions, outputs, their first column, and columns of a row.
  static const int64_t shapes[][5] = {
      {1, 1, 1, 0, 1}, {1, 17, 65, 0, 65}, {3, 16, 256, 16, 512}, {2, 300, 530, 3, 600}, {1, 7, 129, 1, 130}};
  for (int d = 0; d < 2; d++)
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
      int64_t N = shapes[s][0] * shapes[s][1], out = shapes[s][2], first = shapes[s][3],
              stride = shapes[s][4];
      fsdp_op_attrs attrs = {.batch = shapes[s][0],
                             .seq = shapes[s][1],
                             .out_features = out,
                             .out_offset = first,
                             .out_stride = stride};
      kernel_case c = kernel_case_of(FSDP_OP_ADD_BIAS, attrs, tolerance(dtypes[d]));
      const double *bias = kernel_case_input(&c, dtypes[d], out, FSDP_READ, NULL);
      c.sparse[1] = stride > out;
      double *y = kernel_case_input(&c, dtypes[d], N * stride, FSDP_UPDATE, NULL);
      for (int64_t n = 0; n < N; n++)
        for (int64_t o = 0; o < out; o++) y[n * stride + first + o] += bias[o];
      kernel_case_check(&c);
    }
}

static void check_backward_input(const layer *l, int shape, fsdp_dtype dtype, fsdp_dtype result,
                                 bool update) {
  if (result != dtype) return;
  kernel_case c = layer_case(l, shape, FSDP_OP_LINEAR_BACKWARD_INPUT, dtype);
  double *d_y = columns(&c, l, dtype, true);
  c.operands[0].access = FSDP_READ;
  double *weight = kernel_case_input(&c, dtype, l->out * l->in, FSDP_READ, NULL);
  double *d_x = accumulator(&c, dtype, l->N * l->in, update);
  for (int64_t n = 0; n < l->N; n++)
    for (int64_t o = 0; o < l->out; o++)
      for (int64_t i = 0; i < l->in; i++)
        d_x[n * l->in + i] += d_y[n * l->stride + l->offset + o] * weight[at(l, o, i)];
  kernel_case_check(&c);
}

TEST(test_linear_backward_input) {
  for_layers(check_backward_input);
}

static void check_backward_weight(const layer *l, int shape, fsdp_dtype dtype, fsdp_dtype result,
                                  bool update) {
  kernel_case c = layer_case(l, shape, FSDP_OP_LINEAR_BACKWARD_WEIGHT, dtype);
  double *d_y = columns(&c, l, dtype, true);
  c.operands[0].access = FSDP_READ;
  double *x = kernel_case_input(&c, dtype, l->N * l->in, FSDP_READ, NULL);
  double *d_weight = accumulator(&c, result, l->out * l->in, update);
  for (int64_t n = 0; n < l->N; n++)
    for (int64_t o = 0; o < l->out; o++)
      for (int64_t i = 0; i < l->in; i++)
        d_weight[at(l, o, i)] += d_y[n * l->stride + l->offset + o] * x[n * l->in + i];
  kernel_case_check(&c);
}

TEST(test_linear_backward_weight) {
  for_layers(check_backward_weight);
}

static void check_bias_backward(const layer *l, int shape, fsdp_dtype dtype, fsdp_dtype result, bool update) {
  kernel_case c = layer_case(l, shape, FSDP_OP_BIAS_BACKWARD, dtype);
  double *d_y = columns(&c, l, dtype, true);
  c.operands[0].access = FSDP_READ;
  double *d_bias = accumulator(&c, result, l->out, update);
  for (int64_t n = 0; n < l->N; n++)
    for (int64_t o = 0; o < l->out; o++) d_bias[o] += d_y[n * l->stride + l->offset + o];
  kernel_case_check(&c);
}

TEST(test_bias_backward) {
  for_layers(check_bias_backward);
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

// `learned`: a row counts one part of the targets of its document, which has rows of its own.
static void check_head_of(int h, fsdp_dtype dtype, bool backward, bool update, double count, bool learned) {
  int64_t N = heads[h][0], C = heads[h][1], V = heads[h][2];
  fsdp_op_attrs attrs = {.batch = 1,
                         .seq = N,
                         .channels = C,
                         .vocabulary = V,
                         .chunk_rows = heads[h][3],
                         .loss_of_documents = learned};
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
  double *weights = fsdp_alloc((size_t)N * sizeof *weights);
  for (int64_t n = 0; n < N; n++) weights[n] = (double)(1 + n % 7);
  if (learned) kernel_case_input(&c, FSDP_I32, N, FSDP_READ, weights);
  kernel_case_output(&c, FSDP_F32, attrs.chunk_rows * V); // its contents afterwards are nobody's business
  double *softmax = fsdp_alloc((size_t)V * sizeof *softmax);
  for (int64_t n = 0; n < N; n++) {
    if (r.targets[n] == FSDP_TARGET_IGNORED) continue;
    const double divisor = learned ? r.count * weights[n] : r.count;
    loss[0] += row_loss(&r, n, softmax) / divisor;
    for (int64_t v = 0; backward && v < V; v++) {
      double d_logit = (softmax[v] - (v == (int64_t)r.targets[n])) / divisor;
      for (int64_t i = 0; i < C; i++) {
        d_x[n * C + i] += d_logit * r.weight[v * C + i];
        d_weight[v * C + i] += d_logit * r.x[n * C + i];
      }
    }
  }
  if (V == 1) c.tolerance = 1e-4; // everything is zero but for rounding, so the error is absolute
  kernel_case_check(&c);
  free(small), free(drawn), free(softmax), free(weights);
}

static void check_head(int h, fsdp_dtype dtype, bool backward, bool update, double count) {
  check_head_of(h, dtype, backward, update, count, false);
}

TEST(test_linear_cross_entropy) {
  for (int d = 0; d < 2; d++)
    for (int h = 0; h < 4; h++)
      for (int update = 0; update < 2; update++) check_head(h, dtypes[d], false, update, 11);
  for (int h = 0; h < 4; h++) check_head_of(h, dtypes[h % 2], h >= 2, h == 3, 5, true);
  check_head(1, FSDP_F32, false, false, 0); // no target counted anywhere: the divisor is 1
}

TEST(test_linear_cross_entropy_backward) {
  for (int d = 0; d < 2; d++)
    for (int h = 0; h < 4; h++)
      for (int update = 0; update < 2; update++) check_head(h, dtypes[d], true, update, 11);
}

// The reference's own gradient of x by central differences, so that it is not only its own word.
TEST(test_head_slope) {
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
TEST(test_chunks_of_a_bf16_gradient) {
  if (test_sanitized()) skip(); // numbers alone: the chunks themselves are in the tests above
  const int64_t N = 16384, V = 48, short_rows = fsdp_op_chunk_rows(FSDP_OP_CPU, N, V, FSDP_F32),
                long_rows = fsdp_op_chunk_rows(FSDP_OP_CPU, N, V, FSDP_BF16);
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
