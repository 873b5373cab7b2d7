// What auxiliary losses of routers are made of, and their gradients. N rows, E experts, k of them for a row.
// Rows that hold no token are in no sum.
#include "kernels/cpu/operand.h"
#include "kernels/row_map.h"

#include <math.h>
#include <string.h>

typedef struct losses {
  const fsdp_op_attrs *attrs;
  const fsdp_view *o;
  int64_t N, E, k;
} losses;

static losses losses_of(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  FSDP_CHECK((size_t)(6 * attrs->experts + 64) * sizeof(float) <= FSDP_POOL_SCRATCH_BYTES,
             "%lld experts exceed the scratch", (long long)attrs->experts);
  return (losses){.attrs = attrs,
                  .o = open_operands(call, 0),
                  .N = attrs->batch * attrs->seq,
                  .E = attrs->experts,
                  .k = attrs->slots};
}

static void count(void *argument, int64_t index, void *scratch) {
  const losses *l = argument;
  const int32_t *experts = l->o[0].data;
  float *counts = l->o[1].data;
  (void)index, (void)scratch;
  if (!updates(&l->o[1])) memset(counts, 0, (size_t)l->E * sizeof *counts);
  for (int64_t i = 0; i < l->N * l->k; i++) counts[experts[i]]++;
}

void FSDP_CPU(route_counts)(const fsdp_kernel_call *call) {
  losses l = losses_of(call);
  fsdp_pool_run(call->pool, 1, count, &l);
}

// The logarithm of the sum of a row's exponentials. p becomes the probabilities, of sums of 1; *divisor what
// sigmoids were divided by for that.
static float probabilities(const losses *l, int64_t n, float *p, float *divisor) {
  float greatest = -INFINITY, sum = 0;
  load_into(&l->o[0], n * l->E, l->E, p);
  for (int64_t e = 0; e < l->E; e++) greatest = fmaxf(greatest, p[e]);
  for (int64_t e = 0; e < l->E; e++) sum += expf(p[e] - greatest);
  const float logarithm = greatest + logf(sum);
  *divisor = 0;
  for (int64_t e = 0; e < l->E; e++) {
    p[e] = l->attrs->route_score == FSDP_ROUTE_SIGMOID ? 1 / (1 + expf(-p[e])) : expf(p[e] - greatest) / sum;
    *divisor += p[e];
  }
  for (int64_t e = 0; e < l->E && l->attrs->route_score == FSDP_ROUTE_SIGMOID; e++) p[e] /= *divisor;
  return logarithm;
}

static void add_to(const fsdp_view *view, int64_t index, double more) {
  float *at = (float *)view->data + index;
  *at = (float)((updates(view) ? (double)*at : 0) + more);
}

// One thread adds the rows in their order, in double: they are few beside the experts' products. Without a
// row all sums are 0.
static void sum_rows(void *argument, int64_t index, void *scratch) {
  enum { LOGITS, EXPERTS, REAL, SUMS, Z };
  const losses *l = argument;
  double *sums = scratch, z = 0;
  float *p = (float *)(sums + 2 * l->E), divisor;
  const int32_t *experts = l->o[EXPERTS].data, *real = l->o[REAL].data;
  int64_t rows = 0;
  (void)index;
  memset(sums, 0, (size_t)(2 * l->E) * sizeof *sums);
  for (int64_t n = 0; n < l->N; n++) {
    if (!real[n]) continue;
    rows++;
    for (int64_t j = 0; j < l->k; j++) sums[experts[n * l->k + j]]++;
    const double logarithm = (double)probabilities(l, n, p, &divisor);
    z += logarithm * logarithm;
    for (int64_t e = 0; e < l->E; e++) sums[l->E + e] += (double)p[e];
  }
  for (int64_t e = 0; e < 2 * l->E; e++) add_to(&l->o[SUMS], e, sums[e]);
  add_to(&l->o[SUMS], 2 * l->E, (double)rows);
  add_to(&l->o[Z], 0, z);
}

void FSDP_CPU(route_sums)(const fsdp_kernel_call *call) {
  losses l = losses_of(call);
  fsdp_pool_run(call->pool, 1, sum_rows, &l);
}

static void make_loss(void *argument, int64_t index, void *scratch) {
  enum { SUMS, Z, LOSS, Z_LOSS, FACTORS };
  const losses *l = argument;
  const float *sums = l->o[SUMS].data, *z = l->o[Z].data;
  float *factors = l->o[FACTORS].data;
  const double rows = fmax((double)sums[2 * l->E], 1), E = (double)l->E, ranks = (double)l->attrs->ranks;
  const double share = (double)l->attrs->aux_weight * E, own = l->attrs->aux_of_rank ? ranks : 1;
  double aux = 0;
  (void)index, (void)scratch;
  for (int64_t e = 0; e < l->E; e++) {
    aux += (double)sums[e] / rows * ((double)sums[l->E + e] / rows);
    factors[e] = (float)(share * ((double)sums[e] / rows) / rows / own);
  }
  factors[l->E] = (float)((double)l->attrs->z_weight / rows / own);
  add_to(&l->o[LOSS], 0, share * aux / ranks);
  add_to(&l->o[Z_LOSS], 0, (double)factors[l->E] * (double)*z);
}

void FSDP_CPU(route_loss)(const fsdp_kernel_call *call) {
  losses l = losses_of(call);
  FSDP_CHECK(call->attrs->ranks >= 1, "a loss of %lld ranks", (long long)call->attrs->ranks);
  fsdp_pool_run(call->pool, 1, make_loss, &l);
}

// Of probabilities p and factors f: p * (f - sum(p * f)), for sigmoids (f - sum(p * f)) / S * s * (1 - s)
// with s = p * S; and with `z_factor` twice the logarithm, times it, times the softmax. Nothing is added to
// the gradient of a row that holds no token.
static void add_gradient(const losses *l, int64_t n, const float *factors, const float *z_factor, float *p) {
  enum { LOGITS, FACTORS, REAL, D_LOGITS };
  const bool sigmoids = l->attrs->route_score == FSDP_ROUTE_SIGMOID;
  const fsdp_view *d_logits = &l->o[D_LOGITS];
  float *d = scratch_after(p, l->E), *x = scratch_after(d, l->E), dot = 0, divisor;
  if (!((const int32_t *)l->o[REAL].data)[n]) {
    if (!updates(d_logits))
      memset(element(d_logits, n * l->E), 0, (size_t)(l->E * fsdp_dtype_bytes(d_logits->dtype)));
    return;
  }
  const float logarithm = probabilities(l, n, p, &divisor), slope = z_factor ? 2 * logarithm * *z_factor : 0;
  load_into(&l->o[LOGITS], n * l->E, l->E, x);
  for (int64_t e = 0; e < l->E; e++) dot += p[e] * factors[e];
  for (int64_t e = 0; e < l->E; e++) {
    const float by_score = sigmoids ? p[e] * (1 - p[e] * divisor) : p[e];
    d[e] = z_factor ? (factors[e] - dot) * by_score + slope * expf(x[e] - logarithm)
                    : (factors[e] - dot) * by_score;
  }
  store_sums(d_logits, n * l->E, l->E, d, x);
}

static void backward_row(void *argument, int64_t n, void *scratch) {
  const losses *l = argument;
  const float *factors = l->o[1].data;
  add_gradient(l, n, factors, factors + l->E, scratch);
}

void FSDP_CPU(route_sums_backward)(const fsdp_kernel_call *call) {
  losses l = losses_of(call);
  fsdp_pool_run(call->pool, l.N, backward_row, &l);
}

// ---- Of sequences: T rows each

// Rows of a sequence that lie one after the other.
static int64_t piece_of(const losses *l) {
  return l->attrs->piece ? l->attrs->piece : l->attrs->seq;
}

// Of sequence b; T of its rows hold a token, or one is counted.
static double sequence_loss(const losses *l, int64_t b, double *counts, float *p) {
  enum { LOGITS, EXPERTS, REAL, TOTAL, FACTORS };
  const int64_t batch = l->attrs->batch, piece = piece_of(l), sequences = batch * l->attrs->ranks;
  const int32_t *experts = l->o[EXPERTS].data, *real = l->o[REAL].data;
  double *sums = counts + l->E, loss = 0;
  float *factors = (float *)l->o[FACTORS].data + b * l->E, divisor;
  int64_t T = 0;
  memset(counts, 0, (size_t)(2 * l->E) * sizeof *counts);
  for (int64_t i = 0; i < l->attrs->seq; i++) {
    const int64_t n = fsdp_row_in_pieces(batch, piece, b, i);
    if (!real[n]) continue;
    T++;
    for (int64_t j = 0; j < l->k; j++) counts[experts[n * l->k + j]]++;
    probabilities(l, n, p, &divisor);
    for (int64_t e = 0; e < l->E; e++) sums[e] += (double)p[e];
  }
  T = fsdp_max_i64(T, 1);
  const double weight = (double)l->attrs->aux_weight / (double)sequences;
  for (int64_t e = 0; e < l->E; e++) {
    const double share = counts[e] * (double)l->E / (double)(l->k * T);
    loss += share * sums[e] / (double)T;
    factors[e] = (float)(weight * share / (double)T);
  }
  return weight * loss;
}

static void sum_sequences(void *argument, int64_t index, void *scratch) {
  enum { LOGITS, EXPERTS, REAL, TOTAL };
  const losses *l = argument;
  double *counts = scratch, loss = 0;
  (void)index;
  for (int64_t b = 0; b < l->attrs->batch; b++)
    loss += sequence_loss(l, b, counts, (float *)(counts + 2 * l->E));
  add_to(&l->o[TOTAL], 0, loss);
}

void FSDP_CPU(route_sequences)(const fsdp_kernel_call *call) {
  losses l = losses_of(call);
  FSDP_CHECK(call->attrs->ranks >= 1 && l.attrs->seq % piece_of(&l) == 0,
             "sequences of %lld ranks, %lld rows in pieces of %lld", (long long)l.attrs->ranks,
             (long long)l.attrs->seq, (long long)piece_of(&l));
  fsdp_pool_run(call->pool, 1, sum_sequences, &l);
}

void FSDP_CPU(route_total)(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call, 0);
  add_to(&o[1], 0, (double)*(const float *)o[0].data);
}

static void sequence_backward_row(void *argument, int64_t n, void *scratch) {
  const losses *l = argument;
  const int64_t sequence = n / piece_of(l) % l->attrs->batch;
  add_gradient(l, n, (const float *)l->o[1].data + sequence * l->E, NULL, scratch);
}

void FSDP_CPU(route_sequences_backward)(const fsdp_kernel_call *call) {
  losses l = losses_of(call);
  fsdp_pool_run(call->pool, l.N, sequence_backward_row, &l);
}
