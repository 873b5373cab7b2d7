// Auxiliary losses of routers against loops in double and central differences: what they are made of, the
// losses, and the gradients of logits; and the loads that biases move by. Written and added to; the loss of
// one rank and the part of one of three. Rows that hold no token are in none of them.
#include "tests/support/kernel_case.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <string.h>

enum { N = 9, E = 5, K = 2 };
static const fsdp_route_score scores[] = {FSDP_ROUTE_SOFTMAX, FSDP_ROUTE_SIGMOID, FSDP_ROUTE_LOGITS};
enum { SCORES = sizeof scores / sizeof *scores };

static fsdp_op_attrs attrs_of(fsdp_route_score score) {
  return (fsdp_op_attrs){.batch = 3, .seq = N / 3, .experts = E, .slots = K, .route_score = score};
}

static void choose(double *numbers) {
  for (int n = 0; n < N; n++)
    for (int j = 0; j < K; j++) numbers[n * K + j] = (n * n + j) % (E - 1);
}

// Of the last sequence no row holds a token.
static bool is_real(int n) {
  return n % 3 != 2 && n / 3 != 2;
}
enum { REAL = 4 };

static void add_real(kernel_case *c) {
  double real[N];
  for (int n = 0; n < N; n++) real[n] = is_real(n);
  kernel_case_input(c, FSDP_I32, N, FSDP_READ, real);
}

// A row's probabilities, and the logarithm of the softmax's denominator.
static double probabilities(fsdp_route_score score, const double *logits, double *p) {
  double all = 0, sum = 0;
  for (int e = 0; e < E; e++) all += exp(logits[e]);
  for (int e = 0; e < E; e++)
    sum += p[e] = score == FSDP_ROUTE_SIGMOID ? 1 / (1 + exp(-logits[e])) : exp(logits[e]) / all;
  for (int e = 0; e < E; e++) p[e] /= sum;
  return log(all);
}

TEST(test_counts) {
  for (int adds = 0; adds < 2; adds++) {
    kernel_case c = kernel_case_of(FSDP_OP_ROUTE_COUNTS, attrs_of(scores[0]), 0);
    double numbers[N * K], before[E] = {3, 0, 5, 1, 7};
    choose(numbers);
    kernel_case_input(&c, FSDP_I32, N * K, FSDP_READ, numbers);
    double *counts =
        adds ? kernel_case_input(&c, FSDP_F32, E, FSDP_UPDATE, before) : kernel_case_output(&c, FSDP_F32, E);
    for (int e = 0; e < E; e++) {
      if (!adds) counts[e] = 0;
      for (int i = 0; i < N * K; i++) counts[e] += (int)numbers[i] == e;
    }
    kernel_case_check(&c);
  }
}

// Exact integers: above 0 where an expert has more rows that hold a token than the mean.
TEST(test_loads) {
  for (int adds = 0; adds < 2; adds++) {
    kernel_case c = kernel_case_of(FSDP_OP_ROUTE_LOADS, attrs_of(scores[0]), 0);
    double numbers[N * K], before[E] = {3, -2, 0, 5, -6};
    choose(numbers);
    kernel_case_input(&c, FSDP_I32, N * K, FSDP_READ, numbers);
    add_real(&c);
    double *loads =
        adds ? kernel_case_input(&c, FSDP_F32, E, FSDP_UPDATE, before) : kernel_case_output(&c, FSDP_F32, E);
    for (int e = 0; e < E; e++) {
      if (!adds) loads[e] = 0;
      loads[e] -= REAL * K;
      for (int i = 0; i < N * K; i++) loads[e] += is_real(i / K) && (int)numbers[i] == e ? E : 0;
    }
    kernel_case_check(&c);
  }
}

TEST(test_sums) {
  for (int t = 0; t < 2 * SCORES; t++) {
    kernel_case c = kernel_case_of(FSDP_OP_ROUTE_SUMS, attrs_of(scores[t / 2]), 1e-6);
    double numbers[N * K], p[E], zeros[2 * E + 1] = {0}, one = 1;
    choose(numbers);
    const double *logits = kernel_case_input(&c, FSDP_F32, N * E, FSDP_READ, NULL);
    kernel_case_input(&c, FSDP_I32, N * K, FSDP_READ, numbers);
    add_real(&c);
    double *sums = t % 2 ? kernel_case_input(&c, FSDP_F32, 2 * E + 1, FSDP_UPDATE, zeros)
                         : kernel_case_output(&c, FSDP_F32, 2 * E + 1);
    double *z =
        t % 2 ? kernel_case_input(&c, FSDP_F32, 1, FSDP_UPDATE, &one) : kernel_case_output(&c, FSDP_F32, 1);
    memset(sums, 0, (2 * E + 1) * sizeof *sums);
    *z = t % 2;
    for (int n = 0; n < N; n++) {
      if (!is_real(n)) continue;
      for (int j = 0; j < K; j++) sums[(int)numbers[n * K + j]]++;
      const double logarithm = probabilities(scores[t / 2], logits + n * E, p);
      *z += logarithm * logarithm;
      for (int e = 0; e < E; e++) sums[E + e] += p[e];
    }
    sums[2 * E] = REAL;
    kernel_case_check(&c);
  }
}

// Of three ranks with N rows each; `own`: each its own rows, and the mean of their losses, or none at all.
TEST(test_loss) {
  for (int t = 0; t < 3; t++) {
    const bool own = t > 0, has_rows = t < 2;
    fsdp_op_attrs attrs = attrs_of(scores[0]);
    attrs.ranks = 3, attrs.aux_of_rank = own, attrs.aux_weight = 0.25f, attrs.z_weight = 0.5f;
    kernel_case c = kernel_case_of(FSDP_OP_ROUTE_LOSS, attrs, 1e-6);
    const double rows = !has_rows ? 1 : own ? N : 3 * N, divisor = own ? 3 * rows : rows;
    double drawn[2 * E + 1], z = has_rows ? 20 : 0, before[2] = {3, 4}, aux = 0;
    for (int e = 0; e < 2 * E; e++) drawn[e] = has_rows ? 1 + e * e % 7 : 0;
    drawn[2 * E] = has_rows ? rows : 0;
    const double *sums = kernel_case_input(&c, FSDP_F32, 2 * E + 1, FSDP_READ, drawn);
    kernel_case_input(&c, FSDP_F32, 1, FSDP_READ, &z);
    double *loss = kernel_case_input(&c, FSDP_F32, 1, FSDP_UPDATE, &before[0]);
    double *z_loss = kernel_case_input(&c, FSDP_F32, 1, FSDP_UPDATE, &before[1]);
    double *factors = kernel_case_output(&c, FSDP_F32, E + 1);
    for (int e = 0; e < E; e++) {
      aux += E * sums[e] / rows * sums[E + e] / rows;
      factors[e] = 0.25 * E * sums[e] / rows / divisor;
    }
    factors[E] = 0.5 / divisor;
    *loss += 0.25 * aux / 3;
    *z_loss += 0.5 * z / divisor;
    kernel_case_check(&c);
  }
}

// Of sum(factor * probability) and factor * logarithm^2, by central differences.
TEST(test_backward) {
  for (int t = 0; t < 4 * SCORES; t++) {
    const fsdp_route_score score = scores[t / 4];
    const fsdp_dtype dtype = t % 2 ? FSDP_BF16 : FSDP_F32;
    kernel_case c = kernel_case_of(FSDP_OP_ROUTE_SUMS_BACKWARD, attrs_of(score), t % 2 ? 1e-2 : 2e-5);
    const double *logits = kernel_case_input(&c, FSDP_F32, N * E, FSDP_READ, NULL);
    const double *factors = kernel_case_input(&c, FSDP_F32, E + 1, FSDP_READ, NULL);
    add_real(&c);
    double *d = t / 2 % 2 ? kernel_case_input(&c, dtype, N * E, FSDP_UPDATE, NULL)
                          : kernel_case_output(&c, dtype, N * E);
    for (int i = 0; i < N * E; i++) {
      double row[E], p[E], gradient = 0;
      if (!is_real(i / E) && t / 2 % 2 == 0) d[i] = 0;
      if (!is_real(i / E)) continue;
      memcpy(row, logits + i / E * E, sizeof row);
      for (int side = -1; side <= 1; side += 2) {
        row[i % E] = logits[i] + side * 1e-5;
        const double logarithm = probabilities(score, row, p);
        double value = factors[E] * logarithm * logarithm;
        for (int e = 0; e < E; e++) value += factors[e] * p[e];
        gradient += side * value / 2e-5;
      }
      d[i] = gradient + (t / 2 % 2 ? d[i] : 0);
    }
    kernel_case_check(&c);
  }
}

// What other systems got wrong: a softmax of probabilities. A row whose logit of an expert is far above the
// others has the probability 1 there, so that all rows at one expert make E times their share, 1; and rows
// that all experts get alike make k.
TEST(test_no_softmax_of_softmax) {
  for (int even = 0; even < 2; even++) {
    kernel_case c = kernel_case_of(FSDP_OP_ROUTE_SUMS, attrs_of(FSDP_ROUTE_SOFTMAX), 1e-6);
    double drawn[N * E] = {0}, numbers[N * K], ones[N];
    for (int n = 0; n < N; n++) {
      ones[n] = 1;
      if (!even) drawn[n * E + 1] = 60;
      for (int j = 0; j < K; j++) numbers[n * K + j] = even ? (n * K + j) % E : 1 + j;
    }
    kernel_case_input(&c, FSDP_F32, N * E, FSDP_READ, drawn);
    kernel_case_input(&c, FSDP_I32, N * K, FSDP_READ, numbers);
    kernel_case_input(&c, FSDP_I32, N, FSDP_READ, ones);
    double *sums = kernel_case_output(&c, FSDP_F32, 2 * E + 1);
    double *z = kernel_case_output(&c, FSDP_F32, 1), aux = 0;
    memset(sums, 0, (2 * E + 1) * sizeof *sums);
    for (int i = 0; i < N * K; i++) sums[(int)numbers[i]]++;
    for (int e = 0; e < E; e++) sums[E + e] = even ? (double)N / E : e == 1 ? N : 0;
    sums[2 * E] = N;
    *z = N * (even ? log(E) * log(E) : 60.0 * 60.0);
    for (int e = 0; e < E; e++) aux += E * sums[e] / N * sums[E + e] / N;
    assert_true(fabs(aux - (even ? K : E)) < 1e-9);
    kernel_case_check(&c);
  }
}

// The loss of three sequences on one of two ranks, of two rows each and of none, and its gradient by central
// differences.
static double loss_of_sequences(fsdp_route_score score, const double *logits, const double *numbers,
                                double *factors) {
  enum { T = REAL / 2 };
  double loss = 0, p[E];
  for (int b = 0; b < 3; b++) {
    double counts[E] = {0}, sums[E] = {0};
    for (int n = b * (N / 3); n < (b + 1) * (N / 3); n++) {
      if (!is_real(n)) continue;
      for (int j = 0; j < K; j++) counts[(int)numbers[n * K + j]]++;
      probabilities(score, logits + n * E, p);
      for (int e = 0; e < E; e++) sums[e] += p[e];
    }
    for (int e = 0; e < E; e++) {
      const double f = counts[e] * E / (K * T);
      loss += 0.25 / 6 * f * sums[e] / T;
      factors[b * E + e] = 0.25 / 6 * f / T;
    }
  }
  return loss;
}

TEST(test_sequences) {
  for (int t = 0; t < SCORES; t++) {
    fsdp_op_attrs attrs = attrs_of(scores[t]);
    attrs.ranks = 2, attrs.aux_of_rank = true, attrs.aux_weight = 0.25f;
    kernel_case c = kernel_case_of(FSDP_OP_ROUTE_SEQUENCES, attrs, 1e-6);
    double numbers[N * K], before = 3;
    choose(numbers);
    double *logits = kernel_case_input(&c, FSDP_F32, N * E, FSDP_READ, NULL);
    kernel_case_input(&c, FSDP_I32, N * K, FSDP_READ, numbers);
    add_real(&c);
    double *total = kernel_case_input(&c, FSDP_F32, 1, FSDP_UPDATE, &before);
    double *factors = kernel_case_output(&c, FSDP_F32, 3 * E);
    *total += loss_of_sequences(scores[t], logits, numbers, factors);
    double drawn[N * E], given[3 * E], ignored[3 * E], gradient[N * E];
    memcpy(drawn, logits, sizeof drawn);
    memcpy(given, factors, sizeof given);
    kernel_case_check(&c);
    for (int i = 0; i < N * E; i++) {
      double moved[2];
      for (int side = 0; side < 2; side++) {
        const double kept = drawn[i];
        drawn[i] += side ? 1e-5 : -1e-5;
        moved[side] = loss_of_sequences(scores[t], drawn, numbers, ignored);
        drawn[i] = kept;
      }
      gradient[i] = (moved[1] - moved[0]) / 2e-5;
    }
    c = kernel_case_of(FSDP_OP_ROUTE_SEQUENCES_BACKWARD, attrs, 2e-5);
    kernel_case_input(&c, FSDP_F32, N * E, FSDP_READ, drawn);
    kernel_case_input(&c, FSDP_F32, 3 * E, FSDP_READ, given);
    add_real(&c);
    memcpy(kernel_case_output(&c, FSDP_F32, N * E), gradient, sizeof gradient);
    kernel_case_check(&c);
  }
}
