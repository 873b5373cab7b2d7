// The router: which experts a row goes to and with what weights, and the order of routed rows. N rows, E
// experts, k of them for a row.
#include "kernels/cpu/operand.h"
#include "kernels/cpu/ops.h"

#include <math.h>
#include <string.h>

typedef struct router {
  const fsdp_view *logits; // backward: its gradient takes its place
  float *weights;          // (N, k)
  const float *d_weights;  // (N, k)
  int32_t *experts;        // (N, k)
  int64_t E, k;
  bool normalises;
} router;

static router router_of(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  FSDP_CHECK(attrs->slots >= 1 && attrs->slots <= attrs->experts, "%lld of %lld experts",
             (long long)attrs->slots, (long long)attrs->experts);
  FSDP_CHECK((size_t)(2 * attrs->experts + 16) * sizeof(float) <= FSDP_POOL_SCRATCH_BYTES,
             "%lld experts exceed the scratch", (long long)attrs->experts);
  return (router){.E = attrs->experts, .k = attrs->slots, .normalises = attrs->route_normalises};
}

// A row's softmax in fp32, in `scratch`.
static float *probabilities(const router *r, int64_t n, float *scratch) {
  float *p = scratch, greatest = -INFINITY, sum = 0;
  load_into(r->logits, n * r->E, r->E, p);
  for (int64_t e = 0; e < r->E; e++) greatest = fmaxf(greatest, p[e]);
  for (int64_t e = 0; e < r->E; e++) sum += p[e] = expf(p[e] - greatest);
  for (int64_t e = 0; e < r->E; e++) p[e] /= sum;
  return p;
}

// What orders experts: a NaN is below every probability, so that a row still goes to k different experts.
static float score(float p) {
  return p >= 0 ? p : -1;
}

// The first expert in the order of (greater score, lower index) behind `last`, -1: the first of all.
static int64_t next_expert(const router *r, const float *p, int64_t last) {
  int64_t best = -1;
  for (int64_t e = 0; e < r->E; e++) {
    const bool behind =
        last < 0 || score(p[e]) < score(p[last]) || (score(p[e]) == score(p[last]) && e > last);
    if (behind && (best < 0 || score(p[e]) > score(p[best]))) best = e;
  }
  return best;
}

static void route_row(void *argument, int64_t n, void *scratch) {
  const router *r = argument;
  const float *p = probabilities(r, n, scratch);
  float *weights = r->weights + n * r->k, sum = 0;
  int64_t last = -1;
  for (int64_t j = 0; j < r->k; j++) {
    last = next_expert(r, p, last);
    r->experts[n * r->k + j] = (int32_t)last;
    sum += weights[j] = p[last];
  }
  for (int64_t j = 0; j < r->k && r->normalises; j++) weights[j] /= sum;
}

void FSDP_CPU(route)(const fsdp_kernel_call *call) {
  router r = router_of(call);
  const fsdp_view *o = open_operands(call, 0);
  r.logits = &o[0], r.weights = o[1].data, r.experts = o[2].data;
  fsdp_pool_run(call->pool, call->attrs->batch * call->attrs->seq, route_row, &r);
}

// With p the softmax, S the sum of the chosen ones (1 if weights are not normalised) and w = p / S: d_p is
// (d_w - sum(d_w * w)) / S of the chosen, without the sum if they are not normalised, and 0 of the others.
static void route_backward_row(void *argument, int64_t n, void *scratch) {
  const router *r = argument;
  float *p = probabilities(r, n, scratch), *d_p = scratch_after(scratch, r->E), sum = 0, mean = 0, dot = 0;
  const int32_t *experts = r->experts + n * r->k;
  const float *d_weights = r->d_weights + n * r->k;
  memset(d_p, 0, (size_t)r->E * sizeof(float));
  for (int64_t j = 0; j < r->k; j++) sum += p[experts[j]];
  if (!r->normalises) sum = 1;
  for (int64_t j = 0; j < r->k && r->normalises; j++) mean += d_weights[j] * p[experts[j]] / sum;
  for (int64_t j = 0; j < r->k; j++) {
    d_p[experts[j]] = (d_weights[j] - mean) / sum;
    dot += p[experts[j]] * d_p[experts[j]];
  }
  for (int64_t e = 0; e < r->E; e++) d_p[e] = p[e] * (d_p[e] - dot);
  store(r->logits, n * r->E, r->E, d_p);
}

void FSDP_CPU(route_backward)(const fsdp_kernel_call *call) {
  router r = router_of(call);
  const fsdp_view *o = open_operands(call, 0);
  r.experts = o[0].data, r.d_weights = o[1].data, r.logits = &o[2];
  fsdp_pool_run(call->pool, call->attrs->batch * call->attrs->seq, route_backward_row, &r);
}

typedef struct ordering {
  const int32_t *experts; // (N, k)
  int32_t *slots, *offsets;
  int64_t routed, E;
} ordering;

// A counting sort, which is stable: routed rows are numbered by (row, slot).
static void order(void *argument, int64_t index, void *scratch) {
  const ordering *o = argument;
  int32_t *next = scratch;
  (void)index;
  memset(o->offsets, 0, (size_t)(o->E + 1) * sizeof(int32_t));
  for (int64_t i = 0; i < o->routed; i++) o->offsets[o->experts[i] + 1]++;
  for (int64_t e = 0; e < o->E; e++) {
    o->offsets[e + 1] += o->offsets[e];
    next[e] = o->offsets[e];
  }
  for (int64_t i = 0; i < o->routed; i++) o->slots[next[o->experts[i]]++] = (int32_t)i;
}

void FSDP_CPU(route_order)(const fsdp_kernel_call *call) {
  const router r = router_of(call);
  const fsdp_view *o = open_operands(call, 0);
  ordering k = {.experts = o[0].data, .slots = o[1].data, .offsets = o[2].data, .E = r.E};
  k.routed = call->attrs->batch * call->attrs->seq * r.k;
  fsdp_pool_run(call->pool, 1, order, &k);
}
