// Routed experts against loops in double: the router's choice and its derivative, the order of routed rows,
// products grouped by expert, and what goes between them. One expert has no row, and some scores are equal.
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "tests/support/kernel_case.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 11, E = 6, K = 3, C = 19, I = 13, U = N * K, EMPTY = 4 };
static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};

static const fsdp_op_attrs attrs = {
    .batch = 1, .seq = N, .channels = C, .intermediate = I, .experts = E, .slots = K};

// ---- The router

// The chosen experts of a row, by (greater score, lower index), and the weights of given ones.
static void choose(const double *logits, int *chosen) {
  bool taken[E] = {false};
  for (int j = 0; j < K; j++) {
    int best = -1;
    for (int e = 0; e < E; e++)
      if (!taken[e] && (best < 0 || logits[e] > logits[best])) best = e;
    taken[chosen[j] = best] = true;
  }
}

static void weigh(const double *logits, const int *chosen, bool normalises, double *weights) {
  double all = 0, sum = 0;
  for (int e = 0; e < E; e++) all += exp(logits[e]);
  for (int j = 0; j < K; j++) sum += weights[j] = exp(logits[chosen[j]]) / all;
  for (int j = 0; j < K && normalises; j++) weights[j] /= sum;
}

// Scores of which every second row has two equal ones; none chooses EMPTY.
static double *draw_logits(void) {
  double *logits = kernel_normal(7, N * E, 1);
  for (int n = 0; n < N; n++) {
    logits[n * E + EMPTY] = -30;
    if (n % 2) logits[n * E + 1] = logits[n * E + 3] = 2;
  }
  return logits;
}

static void test_route(void **state) {
  (void)state;
  for (int t = 0; t < 4; t++) {
    fsdp_op_attrs own = attrs;
    own.route_normalises = t % 2;
    kernel_case c = kernel_case_of(FSDP_OP_ROUTE, own, 1e-6);
    double *drawn = draw_logits(), *logits = kernel_case_input(&c, dtypes[t / 2], N * E, FSDP_READ, drawn);
    double *weights = kernel_case_output(&c, FSDP_F32, U), *experts = kernel_case_output(&c, FSDP_I32, U);
    for (int n = 0; n < N; n++) {
      int chosen[K];
      choose(logits + n * E, chosen);
      weigh(logits + n * E, chosen, t % 2, weights + n * K);
      for (int j = 0; j < K; j++) experts[n * K + j] = chosen[j];
    }
    kernel_case_check(&c);
    free(drawn);
  }
}

static void test_route_backward(void **state) {
  (void)state;
  for (int t = 0; t < 4; t++) {
    fsdp_op_attrs own = attrs;
    own.route_normalises = t % 2;
    kernel_case c = kernel_case_of(FSDP_OP_ROUTE_BACKWARD, own, t / 2 ? 1e-2 : 2e-5);
    double *drawn = draw_logits(), numbers[U];
    for (int n = 0; n < N; n++) {
      int chosen[K];
      choose(drawn + n * E, chosen);
      for (int j = 0; j < K; j++) numbers[n * K + j] = chosen[j];
    }
    kernel_case_input(&c, FSDP_I32, U, FSDP_READ, numbers);
    double *d_weights = kernel_case_input(&c, FSDP_F32, U, FSDP_READ, NULL);
    double *logits = kernel_case_input(&c, dtypes[t / 2], N * E, FSDP_UPDATE, drawn);
    for (int n = 0; n < N; n++) {
      double *row = logits + n * E, gradient[E] = {0}, weights[K];
      int chosen[K];
      for (int j = 0; j < K; j++) chosen[j] = (int)numbers[n * K + j];
      for (int e = 0; e < E; e++)
        for (int side = -1; side <= 1; side += 2) {
          const double kept = row[e];
          row[e] += side * 1e-5;
          weigh(row, chosen, t % 2, weights);
          row[e] = kept;
          for (int j = 0; j < K; j++) gradient[e] += side * d_weights[n * K + j] * weights[j] / 2e-5;
        }
      memcpy(row, gradient, sizeof gradient);
    }
    kernel_case_check(&c);
    free(drawn);
  }
}

// A row whose scores are not numbers still goes to different experts: no expert has more rows than there are.
static void test_not_finite(void **state) {
  (void)state;
  double logits[N * E];
  for (int i = 0; i < N * E; i++) logits[i] = i % 2 ? NAN : 1;
  kernel_case c = kernel_case_of(FSDP_OP_ROUTE, attrs, 0);
  kernel_case_input(&c, FSDP_F32, N * E, FSDP_READ, logits);
  kernel_case_output(&c, FSDP_F32, U);
  kernel_case_output(&c, FSDP_I32, U);
  kernel_case_run(&c);
  for (int n = 0; n < N; n++)
    for (int j = 0; j < K; j++) {
      const double expert = kernel_value(&c.operands[2], n * K + j);
      assert_true(expert >= 0 && expert < E);
      for (int i = 0; i < j; i++) assert_true(expert != kernel_value(&c.operands[2], n * K + i));
    }
  kernel_case_free(&c);
}

// ---- The order

typedef struct routing {
  double experts[U], slots[U], offsets[E + 1];
} routing;

static routing draw_routing(void) {
  routing r = {.offsets = {0}};
  double *logits = draw_logits();
  int count = 0;
  for (int n = 0; n < N; n++) {
    int chosen[K];
    choose(logits + n * E, chosen);
    for (int j = 0; j < K; j++) r.experts[n * K + j] = chosen[j];
  }
  for (int e = 0; e < E; e++) {
    for (int i = 0; i < U; i++)
      if ((int)r.experts[i] == e) r.slots[count++] = i;
    r.offsets[e + 1] = count;
  }
  assert_int_equal(count, U);
  assert_true(r.offsets[EMPTY] == r.offsets[EMPTY + 1]);
  free(logits);
  return r;
}

static void test_order(void **state) {
  (void)state;
  const routing r = draw_routing();
  kernel_case c = kernel_case_of(FSDP_OP_ROUTE_ORDER, attrs, 0);
  kernel_case_input(&c, FSDP_I32, U, FSDP_READ, r.experts);
  memcpy(kernel_case_output(&c, FSDP_I32, U), r.slots, sizeof r.slots);
  memcpy(kernel_case_output(&c, FSDP_I32, E + 1), r.offsets, sizeof r.offsets);
  kernel_case_check(&c);
}

// ---- Products

// What lies where in an op with a product. A weight is (E, out, in).
typedef struct product {
  fsdp_op_kind kind;
  int out, in;
  bool gathers;  // x, or d_y, has a row for each token, and of d_weight's inputs
  bool scatters; // the result has a row for each slot
} product;

static void add_routing(kernel_case *c, const routing *r) {
  kernel_case_input(c, FSDP_I32, U, FSDP_READ, r->slots);
  kernel_case_input(c, FSDP_I32, E + 1, FSDP_READ, r->offsets);
}

// The row of routed row u in a matrix of `width` columns.
static const double *row_at(const double *matrix, const routing *r, int u, int width, bool of_tokens) {
  return matrix + (of_tokens ? (int)r->slots[u] / K : u) * width;
}

static void test_rows(void **state) {
  (void)state;
  static const product forward[] = {{FSDP_OP_EXPERT_UP, 2 * I, C, true, false},
                                    {FSDP_OP_EXPERT_DOWN, C, I, false, true}};
  static const product backward[] = {{FSDP_OP_EXPERT_DOWN_BACKWARD_INPUT, C, I, true, false},
                                     {FSDP_OP_EXPERT_UP_BACKWARD_INPUT, 2 * I, C, false, true}};
  const routing r = draw_routing();
  for (int t = 0; t < 8; t++) {
    const bool back = t / 4;
    const product *p = back ? &backward[t % 2] : &forward[t % 2];
    const fsdp_dtype dtype = dtypes[t / 2 % 2];
    const int from = back ? p->out : p->in, to = back ? p->in : p->out;
    kernel_case c = kernel_case_of(p->kind, attrs, kernel_tolerance(dtype));
    double *x = kernel_case_input(&c, dtype, (p->gathers ? N : U) * from, FSDP_READ, NULL);
    double *weight = kernel_case_input(&c, dtype, E * p->out * p->in, FSDP_READ, NULL);
    add_routing(&c, &r);
    double *y = kernel_case_output(&c, dtype, U * to);
    kernel_case_output(&c, FSDP_F32, N * C);
    for (int u = 0; u < U; u++) {
      const double *row = row_at(x, &r, u, from, p->gathers);
      const double *of = weight + (int)r.experts[(int)r.slots[u]] * p->out * p->in;
      double *out = y + (p->scatters ? (int)r.slots[u] : u) * to;
      for (int o = 0; o < to; o++) {
        out[o] = 0;
        for (int i = 0; i < from; i++) out[o] += row[i] * (back ? of[i * p->in + o] : of[o * p->in + i]);
      }
    }
    kernel_case_check(&c);
  }
}

// Of both weights: d_weight = d_y^T * x, zero or as it was for the expert without rows.
static void test_weights(void **state) {
  (void)state;
  const routing r = draw_routing();
  for (int t = 0; t < 8; t++) {
    const bool up = t % 2, adds = t / 2 % 2;
    const fsdp_dtype dtype = dtypes[t / 4];
    const int out = up ? 2 * I : C, in = up ? C : I;
    kernel_case c =
        kernel_case_of(up ? FSDP_OP_EXPERT_UP_BACKWARD_WEIGHT : FSDP_OP_EXPERT_DOWN_BACKWARD_WEIGHT, attrs,
                       kernel_tolerance(dtype));
    double *d_y = kernel_case_input(&c, dtype, (up ? U : N) * out, FSDP_READ, NULL);
    double *x = kernel_case_input(&c, dtype, (up ? N : U) * in, FSDP_READ, NULL);
    add_routing(&c, &r);
    double *d_weight = kernel_case_result(&c, adds, FSDP_F32, E * out * in);
    kernel_case_output(&c, FSDP_F32, N * C);
    for (int u = 0; u < U; u++) {
      const double *left = row_at(d_y, &r, u, out, !up), *right = row_at(x, &r, u, in, up);
      double *of = d_weight + (int)r.experts[(int)r.slots[u]] * out * in;
      for (int o = 0; o < out; o++)
        for (int i = 0; i < in; i++) of[o * in + i] += left[o] * right[i];
    }
    kernel_case_check(&c);
  }
}

// ---- Between products

static double gated(double gate, double up) {
  return gate / (1 + exp(-gate)) * up;
}

static void test_swiglu(void **state) {
  (void)state;
  const routing r = draw_routing();
  for (int d = 0; d < 2; d++) {
    kernel_case c = kernel_case_of(FSDP_OP_EXPERT_SWIGLU, attrs, kernel_tolerance(dtypes[d]));
    double *gate_up = kernel_case_input(&c, dtypes[d], U * 2 * I, FSDP_READ, NULL);
    double *weights = kernel_case_input(&c, FSDP_F32, U, FSDP_READ, NULL);
    kernel_case_input(&c, FSDP_I32, U, FSDP_READ, r.slots);
    double *s = kernel_case_output(&c, dtypes[d], U * I);
    for (int i = 0; i < U * I; i++) {
      const double *gate = gate_up + i / I * 2 * I + i % I;
      s[i] = weights[(int)r.slots[i / I]] * gated(gate[0], gate[I]);
    }
    kernel_case_check(&c);
  }
}

static void test_swiglu_backward(void **state) {
  (void)state;
  const routing r = draw_routing();
  for (int d = 0; d < 2; d++) {
    kernel_case c = kernel_case_of(FSDP_OP_EXPERT_SWIGLU_BACKWARD, attrs, kernel_tolerance(dtypes[d]));
    double *d_s = kernel_case_input(&c, dtypes[d], U * I, FSDP_READ, NULL);
    double *weights = kernel_case_input(&c, FSDP_F32, U, FSDP_READ, NULL);
    kernel_case_input(&c, FSDP_I32, U, FSDP_READ, r.slots);
    double *gate_up = kernel_case_input(&c, dtypes[d], U * 2 * I, FSDP_UPDATE, NULL);
    double *d_weights = kernel_case_result(&c, false, FSDP_F32, U);
    for (int i = 0; i < U * I; i++) {
      double *gate = gate_up + i / I * 2 * I + i % I, *up = gate + I, step = 1e-5;
      const double weight = weights[(int)r.slots[i / I]];
      d_weights[(int)r.slots[i / I]] += d_s[i] * gated(*gate, *up);
      const double d_gate = (gated(*gate + step, *up) - gated(*gate - step, *up)) / (2 * step);
      const double d_up = (gated(*gate, *up + step) - gated(*gate, *up - step)) / (2 * step);
      *gate = weight * d_s[i] * d_gate;
      *up = weight * d_s[i] * d_up;
    }
    kernel_case_check(&c);
  }
}

static void test_combine(void **state) {
  (void)state;
  for (int t = 0; t < 4; t++) {
    kernel_case c = kernel_case_of(FSDP_OP_COMBINE, attrs, kernel_tolerance(dtypes[t / 2]));
    double *z = kernel_case_input(&c, dtypes[t / 2], U * C, FSDP_READ, NULL);
    double *y = kernel_case_result(&c, t % 2, dtypes[t / 2], N * C);
    for (int i = 0; i < U * C; i++) y[i / C / K * C + i % C] += z[i];
    kernel_case_check(&c);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_route),      cmocka_unit_test(test_route_backward),
      cmocka_unit_test(test_not_finite), cmocka_unit_test(test_order),
      cmocka_unit_test(test_rows),       cmocka_unit_test(test_weights),
      cmocka_unit_test(test_swiglu),     cmocka_unit_test(test_swiglu_backward),
      cmocka_unit_test(test_combine),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
