// The router: which experts a row goes to and with what weights, and the order of routed rows. N rows, E
// experts, k of them for a row.
#include "kernels/cpu/operand.h"

#include <math.h>
#include <string.h>

typedef struct router {
  const fsdp_view *logits, *bias, *d_logits; // bias: NULL if there is none
  float *weights;                            // (N, k)
  const float *d_weights;                    // (N, k)
  int32_t *experts;                          // (N, k)
  const int32_t *routes; // (N, out_stride), of which k from out_offset on are given; NULL: none are
  int64_t E, k, groups;
  float scale;
  const fsdp_op_attrs *attrs;
} router;

static router router_of(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t experts = attrs->extent ? attrs->extent : attrs->experts; // also those of other ranks
  FSDP_CHECK(attrs->slots >= 1 && attrs->slots <= experts, "%lld of %lld experts", (long long)attrs->slots,
             (long long)experts);
  FSDP_CHECK((size_t)(4 * attrs->experts + 64) * sizeof(float) <= FSDP_POOL_SCRATCH_BYTES,
             "%lld experts exceed the scratch", (long long)attrs->experts);
  return (router){.E = attrs->experts,
                  .k = attrs->slots,
                  .groups = attrs->route_groups ? attrs->route_groups : 1,
                  .scale = attrs->route_scale > 0 ? attrs->route_scale : 1,
                  .attrs = attrs};
}

// ---- Scores

static void softmax(float *p, int64_t count) {
  float greatest = -INFINITY, sum = 0;
  for (int64_t e = 0; e < count; e++) greatest = fmaxf(greatest, p[e]);
  for (int64_t e = 0; e < count; e++) sum += p[e] = expf(p[e] - greatest);
  for (int64_t e = 0; e < count; e++) p[e] /= sum;
}

// A row's scores in fp32, in `scratch`.
static float *scores(const router *r, int64_t n, float *scratch) {
  float *p = scratch;
  load_into(r->logits, n * r->E, r->E, p);
  if (r->attrs->route_score == FSDP_ROUTE_SOFTMAX) softmax(p, r->E);
  for (int64_t e = 0; e < r->E && r->attrs->route_score == FSDP_ROUTE_SIGMOID; e++)
    p[e] = 1 / (1 + expf(-p[e]));
  return p;
}

// What the sum of the chosen scores is divided by: sigmoids may all be 0, as in Transformers.
static float divisor(const router *r, float sum) {
  return r->attrs->route_score == FSDP_ROUTE_SIGMOID ? sum + 1e-20f : sum;
}

// ---- The choice

// The first index in the order of (greater value, lower index) behind `last`, -1: the first of all.
static int64_t next_of(const float *values, int64_t count, int64_t last) {
  int64_t best = -1;
  for (int64_t e = 0; e < count; e++) {
    const bool behind = last < 0 || values[e] < values[last] || (values[e] == values[last] && e > last);
    if (behind && (best < 0 || values[e] > values[best])) best = e;
  }
  return best;
}

// The sum of a group's best values.
static float quality(const float *values, int64_t count, int64_t best) {
  float sum = 0;
  int64_t last = -1;
  for (int64_t j = 0; j < best; j++) {
    last = next_of(values, count, last);
    sum += values[last];
  }
  return sum;
}

// Experts outside of the best groups get -infinity.
static void keep_groups(const router *r, float *choice, float *scratch) {
  const int64_t each = r->E / r->groups;
  float *groups = scratch, *kept = scratch_after(groups, r->groups);
  for (int64_t g = 0; g < r->groups; g++) {
    groups[g] = quality(choice + g * each, each, r->attrs->route_group_best);
    kept[g] = 0;
  }
  int64_t last = -1;
  for (int64_t j = 0; j < r->attrs->route_groups_kept; j++) {
    last = next_of(groups, r->groups, last);
    kept[last] = 1;
  }
  for (int64_t e = 0; e < r->E; e++)
    if (kept[e / each] == 0) choice[e] = -INFINITY;
}

// What experts are chosen by. A NaN is below every number, so that a row still goes to k different experts.
static float *choice_of(const router *r, const float *p, float *scratch) {
  float *choice = scratch, *bias = scratch_after(choice, r->E);
  memcpy(choice, p, (size_t)r->E * sizeof(float));
  if (r->bias) load_into(r->bias, 0, r->E, bias);
  for (int64_t e = 0; e < r->E; e++) {
    if (r->bias) choice[e] += bias[e];
    if (isnan(choice[e])) choice[e] = -INFINITY;
  }
  if (r->groups > 1) keep_groups(r, choice, bias);
  return choice;
}

static void route_row(void *argument, int64_t n, void *scratch) {
  const router *r = argument;
  const float *p = scores(r, n, scratch);
  const int32_t *given = r->routes ? r->routes + n * r->attrs->out_stride + r->attrs->out_offset : NULL;
  const float *choice = choice_of(r, p, scratch_after(scratch, r->E));
  float *weights = r->weights + n * r->k, sum = 0;
  int64_t last = -1;
  for (int64_t j = 0; j < r->k; j++) {
    last = given && *given >= 0 ? given[j] : next_of(choice, r->E, last);
    FSDP_CHECK(last >= 0 && last < r->E, "expert %lld of %lld", (long long)last, (long long)r->E);
    r->experts[n * r->k + j] = (int32_t)last;
    sum += weights[j] = p[last];
  }
  if (r->attrs->route_score == FSDP_ROUTE_LOGITS) softmax(weights, r->k);
  for (int64_t j = 0; j < r->k; j++) {
    if (r->attrs->route_normalises) weights[j] /= divisor(r, sum);
    weights[j] *= r->scale;
  }
}

// Operands: logits[, bias, real][, routes], weights, experts.
static void run_route(const fsdp_kernel_call *call, bool is_biased, bool is_given) {
  router r = router_of(call);
  const fsdp_view *o = open_operands(call, 0);
  r.logits = o++;
  if (is_biased) r.bias = o, o += 2;
  if (is_given) r.routes = (o++)->data;
  r.weights = o[0].data, r.experts = o[1].data;
  fsdp_pool_run(call->pool, call->attrs->batch * call->attrs->seq, route_row, &r);
}

void FSDP_CPU(route)(const fsdp_kernel_call *call) {
  run_route(call, false, false);
}

void FSDP_CPU(route_biased)(const fsdp_kernel_call *call) {
  run_route(call, true, false);
}

void FSDP_CPU(route_given)(const fsdp_kernel_call *call) {
  run_route(call, false, true);
}

void FSDP_CPU(route_given_biased)(const fsdp_kernel_call *call) {
  run_route(call, true, true);
}

// ---- Backward

// With p the scores, S the sum of the chosen ones (1 if weights are not normalised) and w = p / S, before
// they are scaled: d_p is (d_w - sum(d_w * w)) / S of the chosen, without the sum if they are not normalised,
// and 0 of the others.
static void differentiate_weights(const router *r, int64_t n, const float *p, float *d_p) {
  const int32_t *experts = r->experts + n * r->k;
  const float *d_weights = r->d_weights + n * r->k;
  const bool normalises = r->attrs->route_normalises;
  float sum = 0, mean = 0;
  memset(d_p, 0, (size_t)r->E * sizeof(float));
  for (int64_t j = 0; j < r->k; j++) sum += p[experts[j]];
  sum = normalises ? divisor(r, sum) : 1;
  for (int64_t j = 0; j < r->k && normalises; j++) mean += r->scale * d_weights[j] * p[experts[j]] / sum;
  for (int64_t j = 0; j < r->k; j++) d_p[experts[j]] = (r->scale * d_weights[j] - mean) / sum;
}

// Of weights that are the softmax of the chosen logits: w * (d_w - sum(d_w * w)).
static void differentiate_chosen(const router *r, int64_t n, const float *logits, float *d_logits) {
  const int32_t *experts = r->experts + n * r->k;
  const float *d_weights = r->d_weights + n * r->k;
  float greatest = -INFINITY, sum = 0, mean = 0;
  memset(d_logits, 0, (size_t)r->E * sizeof(float));
  for (int64_t j = 0; j < r->k; j++) greatest = fmaxf(greatest, logits[experts[j]]);
  for (int64_t j = 0; j < r->k; j++) sum += expf(logits[experts[j]] - greatest);
  for (int64_t j = 0; j < r->k; j++)
    mean += r->scale * d_weights[j] * expf(logits[experts[j]] - greatest) / sum;
  for (int64_t j = 0; j < r->k; j++)
    d_logits[experts[j]] = (r->scale * d_weights[j] - mean) * expf(logits[experts[j]] - greatest) / sum;
}

static void differentiate_scores(const router *r, const float *p, float *d_p) {
  float dot = 0;
  for (int64_t e = 0; e < r->E; e++) dot += p[e] * d_p[e];
  for (int64_t e = 0; e < r->E; e++)
    d_p[e] = r->attrs->route_score == FSDP_ROUTE_SIGMOID ? d_p[e] * p[e] * (1 - p[e]) : p[e] * (d_p[e] - dot);
}

static void route_backward_row(void *argument, int64_t n, void *scratch) {
  const router *r = argument;
  float *p = scores(r, n, scratch), *d = scratch_after(p, r->E);
  if (r->attrs->route_score == FSDP_ROUTE_LOGITS) {
    differentiate_chosen(r, n, p, d);
  } else {
    differentiate_weights(r, n, p, d);
    differentiate_scores(r, p, d);
  }
  store_sums(r->d_logits, n * r->E, r->E, d, scratch_after(d, r->E));
}

void FSDP_CPU(route_backward)(const fsdp_kernel_call *call) {
  router r = router_of(call);
  const fsdp_view *o = open_operands(call, 0);
  r.logits = &o[0], r.experts = o[1].data, r.d_weights = o[2].data, r.d_logits = &o[3];
  fsdp_pool_run(call->pool, call->attrs->batch * call->attrs->seq, route_backward_row, &r);
}

// ---- The order

typedef struct ordering {
  const int32_t *experts; // (N, k)
  int32_t *slots, *offsets, *places;
  int64_t slot_count, capacity, first, E; // E experts from `first` on
} ordering;

// The rank's expert that a slot is sent to; -1: it has none, or another rank has it.
static int64_t own_expert(const ordering *o, int64_t slot) {
  const int64_t e = o->experts[slot] - o->first;
  return e >= 0 && e < o->E ? e : -1;
}

// A counting sort, which is stable: slots are numbered by (row, slot).
static void order(void *argument, int64_t index, void *scratch) {
  const ordering *o = argument;
  int32_t *next = scratch;
  (void)index;
  memset(o->offsets, 0, (size_t)(o->E + 1) * sizeof(int32_t));
  for (int64_t i = 0; i < o->slot_count; i++)
    if (own_expert(o, i) >= 0) o->offsets[own_expert(o, i) + 1]++;
  for (int64_t e = 0; e < o->E; e++) {
    o->offsets[e + 1] += o->offsets[e];
    next[e] = o->offsets[e];
  }
  FSDP_CHECK(o->offsets[o->E] <= o->capacity, "%d routed rows in %lld", (int)o->offsets[o->E],
             (long long)o->capacity);
  for (int64_t i = 0; i < o->slot_count; i++) {
    const int64_t e = own_expert(o, i);
    o->places[i] = e < 0 ? -1 : next[e]++;
    if (e >= 0) o->slots[o->places[i]] = (int32_t)i;
  }
  for (int64_t u = o->offsets[o->E]; u < o->capacity; u++) o->slots[u] = -1;
}

void FSDP_CPU(route_order)(const fsdp_kernel_call *call) {
  const router r = router_of(call);
  const fsdp_op_attrs *attrs = call->attrs;
  const fsdp_view *o = open_operands(call, 0);
  ordering k = {.experts = o[0].data, .slots = o[1].data, .offsets = o[2].data, .places = o[3].data};
  k.E = r.E, k.first = attrs->first_index;
  k.slot_count = attrs->batch * attrs->seq * r.k;
  k.capacity = fsdp_op_letter_size(attrs, 'a', 0);
  fsdp_pool_run(call->pool, 1, order, &k);
}

void FSDP_CPU(route_overflow)(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const fsdp_view *o = open_operands(call, 0);
  const int64_t later = fsdp_op_later_wave_rows(attrs);
  const int64_t rows = fsdp_max_i64(0, ((const int32_t *)o[0].data)[attrs->experts] - attrs->routed);
  const int64_t waves = (rows + later - 1) / later;
  float *overflow = o[1].data;
  const float before[2] = {updates(&o[1]) ? overflow[0] : 0, updates(&o[1]) ? overflow[1] : 0};
  overflow[0] = before[0] + (float)rows;
  overflow[1] = before[1] + (float)waves;
}
