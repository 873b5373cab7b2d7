// Routed experts against loops in double: the router, the order of routed rows, products grouped by expert,
// and what goes between. One expert has no row, some scores are equal; an op may have a block of experts.
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "tests/support/kernel_case.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 11, E = 6, K = 3, C = 19, I = 13, U = N * K, EMPTY = 4 };
static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};

static const fsdp_op_attrs attrs = {
    .batch = 1, .seq = N, .channels = C, .intermediate = I, .experts = E, .slots = K};

// ---- The router

// A router: its attributes, and whether a bias helps to choose.
typedef struct router_case {
  fsdp_route_score score;
  bool normalises, biased;
  int groups, kept, best; // 0: one group
  float scale;
} router_case;

static const router_case routers[] = {
    {.score = FSDP_ROUTE_SOFTMAX},
    {.score = FSDP_ROUTE_SOFTMAX, .normalises = true},
    {.score = FSDP_ROUTE_SOFTMAX, .groups = 3, .kept = 2, .best = 1, .scale = 1.7f},
    {.score = FSDP_ROUTE_SIGMOID, .biased = true},
    {.score = FSDP_ROUTE_SIGMOID, .biased = true, .normalises = true, .scale = 2.5f},
    {.score = FSDP_ROUTE_SIGMOID, .biased = true, .normalises = true, .groups = 2, .kept = 1, .best = 2},
    {.score = FSDP_ROUTE_LOGITS},
    {.score = FSDP_ROUTE_LOGITS, .scale = 0.5f},
};
enum { ROUTERS = sizeof routers / sizeof *routers };
static const double biases[E] = {0.01, -0.3, 0.2, 0.7, 0, -0.02};

static fsdp_op_attrs router_attrs(const router_case *r) {
  fsdp_op_attrs own = attrs;
  own.route_score = r->score;
  own.route_normalises = r->normalises;
  own.route_groups = r->groups;
  own.route_groups_kept = r->kept;
  own.route_group_best = r->best;
  own.route_scale = r->scale;
  return own;
}

static void score(const router_case *r, const double *logits, double *scores) {
  double all = 0;
  for (int e = 0; e < E; e++) all += exp(logits[e]);
  for (int e = 0; e < E; e++)
    scores[e] = r->score == FSDP_ROUTE_SOFTMAX   ? exp(logits[e]) / all
                : r->score == FSDP_ROUTE_SIGMOID ? 1 / (1 + exp(-logits[e]))
                                                 : logits[e];
}

// The first `count` of all, by (greater value, lower index).
static void take_best(const double *values, int all, int count, int *taken) {
  bool is_taken[E] = {false};
  for (int j = 0; j < count; j++) {
    int best = -1;
    for (int e = 0; e < all; e++)
      if (!is_taken[e] && (best < 0 || values[e] > values[best])) best = e;
    is_taken[taken[j] = best] = true;
  }
}

// The chosen experts of a row, by brute force over its groups.
static void choose_by(const router_case *r, const double *logits, int *chosen) {
  double values[E], sums[E];
  int kept[E], best[E];
  score(r, logits, values);
  for (int e = 0; e < E && r->biased; e++) values[e] += biases[e];
  for (int g = 0; g < r->groups; g++) {
    const int each = E / r->groups;
    take_best(values + g * each, each, r->best, best);
    sums[g] = 0;
    for (int j = 0; j < r->best; j++) sums[g] += values[g * each + best[j]];
  }
  take_best(sums, r->groups, r->kept, kept);
  for (int e = 0; e < E && r->groups; e++) {
    bool is_kept = false;
    for (int j = 0; j < r->kept; j++) is_kept |= kept[j] == e / (E / r->groups);
    if (!is_kept) values[e] = -1e30;
  }
  take_best(values, E, K, chosen);
}

static void choose(const double *logits, int *chosen) {
  choose_by(&routers[0], logits, chosen);
}

// The weights of given experts.
static void weigh(const router_case *r, const double *logits, const int *chosen, double *weights) {
  double scores[E], sum = 0;
  score(r, logits, scores);
  for (int j = 0; j < K; j++)
    sum += weights[j] = r->score == FSDP_ROUTE_LOGITS ? exp(scores[chosen[j]]) : scores[chosen[j]];
  for (int j = 0; j < K; j++) {
    if (r->normalises || r->score == FSDP_ROUTE_LOGITS) weights[j] /= sum;
    if (r->scale > 0) weights[j] *= (double)r->scale;
  }
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

// A bias and, for the backward, the rows that hold a token; these do not choose.
static void add_bias(kernel_case *c) {
  const double real[N] = {0, 1, 1};
  kernel_case_input(c, FSDP_F32, E, FSDP_READ, biases);
  c->sparse[c->operand_count] = true;
  kernel_case_input(c, FSDP_I32, N, FSDP_READ, real);
}

TEST(test_route) {
  for (int t = 0; t < 2 * ROUTERS; t++) {
    const router_case *r = &routers[t / 2];
    kernel_case c = kernel_case_of(r->biased ? FSDP_OP_ROUTE_BIASED : FSDP_OP_ROUTE, router_attrs(r), 1e-6);
    double *drawn = draw_logits(), *logits = kernel_case_input(&c, dtypes[t % 2], N * E, FSDP_READ, drawn);
    if (r->biased) add_bias(&c);
    double *weights = kernel_case_output(&c, FSDP_F32, U), *experts = kernel_case_output(&c, FSDP_I32, U);
    for (int n = 0; n < N; n++) {
      int chosen[K];
      choose_by(r, logits + n * E, chosen);
      weigh(r, logits + n * E, chosen, weights + n * K);
      for (int j = 0; j < K; j++) experts[n * K + j] = chosen[j];
    }
    kernel_case_check(&c);
    free(drawn);
  }
}

// Columns of a wider matrix say where a row goes, and every third row chooses by itself.
TEST(test_given) {
  enum { OFFSET = 2, STRIDE = OFFSET + K + 1 };
  for (int t = 0; t < ROUTERS; t++) {
    const router_case *r = &routers[t];
    fsdp_op_attrs own = router_attrs(r);
    own.out_offset = OFFSET, own.out_features = K, own.out_stride = STRIDE;
    kernel_case c = kernel_case_of(r->biased ? FSDP_OP_ROUTE_GIVEN_BIASED : FSDP_OP_ROUTE_GIVEN, own, 1e-6);
    double *drawn = draw_logits(), routes[N * STRIDE];
    const double *logits = kernel_case_input(&c, FSDP_F32, N * E, FSDP_READ, drawn);
    for (int i = 0; i < N * STRIDE; i++) {
      const int n = i / STRIDE, column = i % STRIDE;
      routes[i] = n % 3 == 0 ? -1 : (n + column) % E;
    }
    if (r->biased) add_bias(&c);
    c.sparse[c.operand_count] = true; // only these columns are read
    kernel_case_input(&c, FSDP_I32, N * STRIDE, FSDP_READ, routes);
    double *weights = kernel_case_output(&c, FSDP_F32, U), *experts = kernel_case_output(&c, FSDP_I32, U);
    for (int n = 0; n < N; n++) {
      int chosen[K];
      choose_by(r, logits + n * E, chosen);
      for (int j = 0; j < K && n % 3; j++) chosen[j] = (n + OFFSET + j) % E;
      weigh(r, logits + n * E, chosen, weights + n * K);
      for (int j = 0; j < K; j++) experts[n * K + j] = chosen[j];
    }
    kernel_case_check(&c);
    free(drawn);
  }
}

// By central differences; written, and added to.
TEST(test_route_backward) {
  for (int t = 0; t < 4 * ROUTERS; t++) {
    const router_case *r = &routers[t / 4];
    kernel_case c = kernel_case_of(FSDP_OP_ROUTE_BACKWARD, router_attrs(r), t % 2 ? 1e-2 : 2e-5);
    double *drawn = draw_logits(), numbers[U], row[E], weights[K];
    for (int n = 0; n < N; n++) {
      int chosen[K];
      choose_by(r, drawn + n * E, chosen);
      for (int j = 0; j < K; j++) numbers[n * K + j] = chosen[j];
    }
    const double *logits = kernel_case_input(&c, dtypes[t % 2], N * E, FSDP_READ, drawn);
    kernel_case_input(&c, FSDP_I32, U, FSDP_READ, numbers);
    double *d_weights = kernel_case_input(&c, FSDP_F32, U, FSDP_READ, NULL);
    double *gradient = t / 2 % 2 ? kernel_case_input(&c, dtypes[t % 2], N * E, FSDP_UPDATE, NULL)
                                 : kernel_case_output(&c, dtypes[t % 2], N * E);
    for (int n = 0; n < N; n++) {
      int chosen[K];
      memcpy(row, logits + n * E, sizeof row);
      for (int j = 0; j < K; j++) chosen[j] = (int)numbers[n * K + j];
      for (int e = 0; e < E; e++) {
        if (t / 2 % 2 == 0) gradient[n * E + e] = 0;
        for (int side = -1; side <= 1; side += 2) {
          const double kept = row[e];
          row[e] += side * 1e-5;
          weigh(r, row, chosen, weights);
          row[e] = kept;
          for (int j = 0; j < K; j++) gradient[n * E + e] += side * d_weights[n * K + j] * weights[j] / 2e-5;
        }
      }
    }
    kernel_case_check(&c);
    free(drawn);
  }
}

TEST(test_balance) {
  enum { P = 1500 };
  double load[P], bias[P], zeros[P] = {0}, scalars[FSDP_SCALAR_COUNT] = {0};
  for (int i = 0; i < P; i++) load[i] = i % 5 - 2, bias[i] = i % 7 - 3;
  for (int skips = 0; skips < 2; skips++) {
    kernel_case c = kernel_case_of(FSDP_OP_BALANCE, (fsdp_op_attrs){.balance_rate = 0.25f}, 0);
    const double factor = skips ? (double)FSDP_FACTOR_SKIP : 0.5;
    kernel_case_input(&c, FSDP_F32, P, FSDP_READ, load);
    kernel_case_input(&c, FSDP_F32, FSDP_SCALAR_COUNT, FSDP_READ, scalars);
    kernel_case_input(&c, FSDP_F32, 1, FSDP_READ, &factor);
    double *expected = kernel_case_input(&c, FSDP_F32, P, FSDP_UPDATE, bias);
    kernel_case_input(&c, FSDP_F32, P, FSDP_UPDATE, zeros);
    kernel_case_input(&c, FSDP_F32, P, FSDP_UPDATE, zeros);
    for (int i = 0; i < P && !skips; i++) expected[i] -= 0.25 * ((load[i] > 0) - (load[i] < 0));
    kernel_case_check(&c);
  }
}

// ---- An expert that every row goes to

TEST(test_shared) {
  for (int t = 0; t < 2; t++) {
    kernel_case c = kernel_case_of(FSDP_OP_SHARED_GATE, attrs, t ? 1e-2 : 1e-6);
    const double *y = kernel_case_input(&c, dtypes[t], N * C, FSDP_READ, NULL);
    const double *gate = kernel_case_input(&c, dtypes[t], N, FSDP_READ, NULL);
    double *gated = kernel_case_output(&c, dtypes[t], N * C);
    for (int i = 0; i < N * C; i++) gated[i] = y[i] / (1 + exp(-gate[i / C]));
    kernel_case_check(&c);
    c = kernel_case_of(FSDP_OP_SHARED_ADD, attrs, t ? 1e-2 : 1e-6);
    const double *a = kernel_case_input(&c, dtypes[t], N * C, FSDP_READ, NULL);
    const double *b = kernel_case_input(&c, dtypes[t], N * C, FSDP_READ, NULL);
    double *sum = kernel_case_output(&c, dtypes[t], N * C);
    for (int i = 0; i < N * C; i++) sum[i] = a[i] + b[i];
    kernel_case_check(&c);
  }
}

TEST(test_shared_backward) {
  for (int t = 0; t < 2; t++) {
    kernel_case c = kernel_case_of(FSDP_OP_SHARED_GATE_BACKWARD, attrs, t ? 1e-2 : 1e-5);
    const double *d_gated = kernel_case_input(&c, dtypes[t], N * C, FSDP_READ, NULL);
    const double *gate = kernel_case_input(&c, dtypes[t], N, FSDP_READ, NULL);
    double *y = kernel_case_input(&c, dtypes[t], N * C, FSDP_UPDATE, NULL);
    double *d_gate = kernel_case_output(&c, dtypes[t], N);
    for (int n = 0; n < N; n++) {
      const double s = 1 / (1 + exp(-gate[n]));
      d_gate[n] = 0;
      for (int i = 0; i < C; i++) {
        d_gate[n] += d_gated[n * C + i] * y[n * C + i] * s * (1 - s);
        y[n * C + i] = d_gated[n * C + i] * s;
      }
    }
    kernel_case_check(&c);
  }
}

// A row whose scores are not numbers still goes to different experts: no expert has more rows than there are.
TEST(test_not_finite) {
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
  double experts[U], slots[U], offsets[E + 1], places[U];
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
    for (int i = 0; i < U; i++) {
      if ((int)r.experts[i] != e) continue;
      r.places[i] = count;
      r.slots[count++] = i;
    }
    r.offsets[e + 1] = count;
  }
  assert_int_equal(count, U);
  assert_true(r.offsets[EMPTY] == r.offsets[EMPTY + 1]);
  free(logits);
  return r;
}

TEST(test_order) {
  const routing r = draw_routing();
  kernel_case c = kernel_case_of(FSDP_OP_ROUTE_ORDER, attrs, 0);
  kernel_case_input(&c, FSDP_I32, U, FSDP_READ, r.experts);
  memcpy(kernel_case_output(&c, FSDP_I32, U), r.slots, sizeof r.slots);
  memcpy(kernel_case_output(&c, FSDP_I32, E + 1), r.offsets, sizeof r.offsets);
  memcpy(kernel_case_output(&c, FSDP_I32, U), r.places, sizeof r.places);
  kernel_case_check(&c);
}

// Of a rank that has OWN of the experts, from FIRST on, and room for every row's slots there; the last rank's
// may be fewer, or none.
TEST(test_order_of_own) {
  enum { OWN = 2, ROOM = N * OWN };
  const routing r = draw_routing();
  for (int first = 0; first < E + OWN; first += OWN) {
    fsdp_op_attrs own = attrs;
    own.experts = OWN, own.first_index = first, own.extent = E, own.arrivals = ROOM;
    kernel_case c = kernel_case_of(FSDP_OP_ROUTE_ORDER, own, 0);
    kernel_case_input(&c, FSDP_I32, U, FSDP_READ, r.experts);
    double *slots = kernel_case_output(&c, FSDP_I32, ROOM),
           *offsets = kernel_case_output(&c, FSDP_I32, OWN + 1);
    double *places = kernel_case_output(&c, FSDP_I32, U);
    const int begin = first < E ? (int)r.offsets[first] : U;
    for (int e = 0; e <= OWN; e++) offsets[e] = (first + e < E ? r.offsets[first + e] : U) - begin;
    for (int u = 0; u < ROOM; u++) slots[u] = u < offsets[OWN] ? r.slots[begin + u] : -1;
    for (int i = 0; i < U; i++) {
      const int place = (int)r.places[i] - begin;
      places[i] = place >= 0 && place < offsets[OWN] ? place : -1;
    }
    kernel_case_check(&c);
  }
}

// ---- Products

// What lies where in an op with a product. A weight is (E, out, in).
typedef struct product {
  fsdp_op_kind kind;
  int out, in;
  bool gathers; // x, or d_y, has a row for each token, and of d_weight's inputs
} product;

// Experts of an op: all, some with the one that has no row among them, and the last.
typedef struct block {
  int first, count;
} block;
enum { BLOCKS = 3 };
static const block blocks[BLOCKS] = {{0, E}, {2, EMPTY - 1}, {E - 1, 1}};

static fsdp_op_attrs attrs_of_block(block b) {
  fsdp_op_attrs own = attrs;
  own.experts = b.count;
  if (b.count < E) own.held_experts = E, own.first_expert = b.first;
  return own;
}

static int expert_of(const routing *r, int u) {
  return (int)r->experts[(int)r->slots[u]];
}
static bool has_row(block b, const routing *r, int u) {
  return expert_of(r, u) >= b.first && expert_of(r, u) < b.first + b.count;
}

// Routed rows that an op of all experts writes, and an op of a block beside what is there.
static double *add_rows(kernel_case *c, block b, fsdp_dtype dtype, int numel) {
  return kernel_case_result(c, b.count < E, dtype, numel);
}

static void add_offsets(kernel_case *c, block b, const routing *r) {
  kernel_case_input(c, FSDP_I32, b.count + 1, FSDP_READ, r->offsets + b.first);
}
static void add_routing(kernel_case *c, block b, const routing *r) {
  kernel_case_input(c, FSDP_I32, U, FSDP_READ, r->slots);
  add_offsets(c, b, r);
}

// The row of routed row u in a matrix of `width` columns.
static const double *row_at(const double *matrix, const routing *r, int u, int width, bool of_tokens) {
  return matrix + (of_tokens ? (int)r->slots[u] / K : u) * width;
}

TEST(test_rows) {
  static const product forward[] = {{FSDP_OP_EXPERT_UP, 2 * I, C, true}, {FSDP_OP_EXPERT_DOWN, C, I, false}};
  static const product backward[] = {{FSDP_OP_EXPERT_DOWN_BACKWARD_INPUT, C, I, true},
                                     {FSDP_OP_EXPERT_UP_BACKWARD_INPUT, 2 * I, C, false}};
  const routing r = draw_routing();
  for (int t = 0; t < 8 * BLOCKS; t++) {
    const bool back = t / 4 % 2;
    const block b = blocks[t / 8];
    const product *p = back ? &backward[t % 2] : &forward[t % 2];
    const fsdp_dtype dtype = dtypes[t / 2 % 2];
    const int from = back ? p->out : p->in, to = back ? p->in : p->out;
    kernel_case c = kernel_case_of(p->kind, attrs_of_block(b), kernel_tolerance(dtype));
    double *x = kernel_case_input(&c, dtype, (p->gathers ? N : U) * from, FSDP_READ, NULL);
    double *weight = kernel_case_input(&c, dtype, b.count * p->out * p->in, FSDP_READ, NULL);
    add_routing(&c, b, &r);
    double *y = add_rows(&c, b, dtype, U * to);
    if (p->gathers) kernel_case_output(&c, FSDP_F32, N * C);
    for (int u = 0; u < U; u++) {
      if (!has_row(b, &r, u)) continue;
      const double *row = row_at(x, &r, u, from, p->gathers);
      const double *of = weight + (expert_of(&r, u) - b.first) * p->out * p->in;
      double *out = y + u * to;
      for (int o = 0; o < to; o++) {
        out[o] = 0;
        for (int i = 0; i < from; i++) out[o] += row[i] * (back ? of[i * p->in + o] : of[o * p->in + i]);
      }
    }
    kernel_case_check(&c);
  }
}

// What other systems got wrong: the first expert alone was computed. Weights of expert e are e + 1 and rows
// are ones, so that each of its rows is (e + 1) C, exactly, in bf16 too.
TEST(test_every_expert_computes) {
  const routing r = draw_routing();
  for (int t = 0; t < 2; t++) {
    double ones[N * C], weights[E * 2 * I * C];
    int computed[E] = {0}, all = 0;
    for (int i = 0; i < N * C; i++) ones[i] = 1;
    for (int e = 0; e < E; e++)
      for (int i = 0; i < 2 * I * C; i++) weights[e * 2 * I * C + i] = e + 1;
    kernel_case c = kernel_case_of(FSDP_OP_EXPERT_UP, attrs, 0);
    kernel_case_input(&c, dtypes[t], N * C, FSDP_READ, ones);
    kernel_case_input(&c, dtypes[t], E * 2 * I * C, FSDP_READ, weights);
    add_routing(&c, blocks[0], &r);
    double *y = kernel_case_output(&c, dtypes[t], U * 2 * I);
    kernel_case_output(&c, FSDP_F32, N * C);
    for (int u = 0; u < U; u++) {
      const int expert = expert_of(&r, u);
      for (int o = 0; o < 2 * I; o++) y[u * 2 * I + o] = (expert + 1) * C;
      computed[expert]++;
    }
    for (int e = 0; e < E; e++) all += computed[e] > 0;
    assert_int_equal(all, E - 1); // all but the one without rows
    kernel_case_check(&c);
  }
}

// Of both weights: d_weight = d_y^T * x, zero or as it was for the expert without rows.
TEST(test_weights) {
  const routing r = draw_routing();
  for (int t = 0; t < 8 * BLOCKS; t++) {
    const bool up = t % 2, adds = t / 2 % 2;
    const block b = blocks[t / 8];
    const fsdp_dtype dtype = dtypes[t / 4 % 2];
    const int out = up ? 2 * I : C, in = up ? C : I;
    kernel_case c =
        kernel_case_of(up ? FSDP_OP_EXPERT_UP_BACKWARD_WEIGHT : FSDP_OP_EXPERT_DOWN_BACKWARD_WEIGHT,
                       attrs_of_block(b), kernel_tolerance(dtype));
    double *d_y = kernel_case_input(&c, dtype, (up ? U : N) * out, FSDP_READ, NULL);
    double *x = kernel_case_input(&c, dtype, (up ? N : U) * in, FSDP_READ, NULL);
    add_routing(&c, b, &r);
    double *d_weight = kernel_case_result(&c, adds, FSDP_F32, b.count * out * in);
    kernel_case_output(&c, FSDP_F32, N * C);
    for (int u = 0; u < U; u++) {
      if (!has_row(b, &r, u)) continue;
      const double *left = row_at(d_y, &r, u, out, !up), *right = row_at(x, &r, u, in, up);
      double *of = d_weight + (expert_of(&r, u) - b.first) * out * in;
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

TEST(test_swiglu) {
  const routing r = draw_routing();
  for (int t = 0; t < 2 * BLOCKS; t++) {
    const block b = blocks[t / 2];
    const fsdp_dtype dtype = dtypes[t % 2];
    kernel_case c = kernel_case_of(FSDP_OP_EXPERT_SWIGLU, attrs_of_block(b), kernel_tolerance(dtype));
    double *gate_up = kernel_case_input(&c, dtype, U * 2 * I, FSDP_READ, NULL);
    double *weights = kernel_case_input(&c, FSDP_F32, U, FSDP_READ, NULL);
    kernel_case_input(&c, FSDP_I32, U, FSDP_READ, r.places);
    add_offsets(&c, b, &r);
    double *s = add_rows(&c, b, dtype, U * I);
    for (int i = 0; i < U * I; i++) {
      if (!has_row(b, &r, i / I)) continue;
      const double *gate = gate_up + i / I * 2 * I + i % I;
      s[i] = weights[(int)r.slots[i / I]] * gated(gate[0], gate[I]);
    }
    kernel_case_check(&c);
  }
}

TEST(test_swiglu_backward) {
  const routing r = draw_routing();
  for (int t = 0; t < 2 * BLOCKS; t++) {
    const block b = blocks[t / 2];
    const fsdp_dtype dtype = dtypes[t % 2];
    kernel_case c =
        kernel_case_of(FSDP_OP_EXPERT_SWIGLU_BACKWARD, attrs_of_block(b), kernel_tolerance(dtype));
    double *d_s = kernel_case_input(&c, dtype, U * I, FSDP_READ, NULL);
    double *weights = kernel_case_input(&c, FSDP_F32, U, FSDP_READ, NULL);
    kernel_case_input(&c, FSDP_I32, U, FSDP_READ, r.places);
    add_offsets(&c, b, &r);
    double *gate_up = kernel_case_input(&c, dtype, U * 2 * I, FSDP_UPDATE, NULL);
    double *d_weights = kernel_case_result(&c, t / 2 == 1, FSDP_F32, U);
    for (int i = 0; i < U * I; i++) {
      if (!has_row(b, &r, i / I)) continue;
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

TEST(test_combine) {
  routing r = draw_routing();
  for (int t = 0; t < 8; t++) {
    const bool is_cut = t / 4; // slots of another rank's experts
    for (int i = 0; i < U && is_cut; i++)
      if (i % 4 == 1) r.places[i] = -1;
    kernel_case c = kernel_case_of(FSDP_OP_COMBINE, attrs, kernel_tolerance(dtypes[t / 2 % 2]));
    double *z = kernel_case_input(&c, dtypes[t / 2 % 2], U * C, FSDP_READ, NULL);
    kernel_case_input(&c, FSDP_I32, U, FSDP_READ, r.places);
    double *y = kernel_case_result(&c, t % 2, dtypes[t / 2 % 2], N * C);
    for (int i = 0; i < U * C; i++)
      if (r.places[i / C] >= 0) y[i / C / K * C + i % C] += z[(int)r.places[i / C] * C + i % C];
    kernel_case_check(&c);
  }
}
