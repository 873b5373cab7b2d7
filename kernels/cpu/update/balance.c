// The rule that moves routers' correction biases, and the loads that it goes by.
#include "kernels/cpu/operand.h"

#include <string.h>

typedef struct counting {
  const int32_t *experts, *real; // (N, k), (N)
  const fsdp_view *loads;
  int64_t N, E, k;
} counting;

static void count(void *argument, int64_t index, void *scratch) {
  const counting *c = argument;
  float *loads = scratch, *before = scratch_after(loads, c->E);
  int64_t routed = 0;
  (void)index;
  memset(loads, 0, (size_t)c->E * sizeof(float));
  for (int64_t n = 0; n < c->N; n++) {
    if (!c->real[n]) continue;
    for (int64_t j = 0; j < c->k; j++) loads[c->experts[n * c->k + j]]++;
    routed += c->k;
  }
  if (updates(c->loads)) load_into(c->loads, 0, c->E, before);
  for (int64_t e = 0; e < c->E; e++) {
    loads[e] = (float)c->E * loads[e] - (float)routed; // whole numbers, exact up to 2^24
    if (updates(c->loads)) loads[e] += before[e];
  }
  store(c->loads, 0, c->E, loads);
}

void FSDP_CPU(route_loads)(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const fsdp_view *o = open_operands(call, 0);
  counting c = {.experts = o[0].data,
                .real = o[1].data,
                .loads = &o[2],
                .N = attrs->batch * attrs->seq,
                .E = attrs->experts,
                .k = attrs->slots};
  fsdp_pool_run(call->pool, 1, count, &c);
}

enum { CHUNK = 1024 };

typedef struct balancing {
  const fsdp_view *load, *master, *copy; // copy: NULL if there is none
  int64_t count;
  float rate;
} balancing;

static void balance_chunk(void *argument, int64_t index, void *scratch) {
  const balancing *b = argument;
  const int64_t first = index * CHUNK, count = fsdp_min_i64(CHUNK, b->count - first);
  float *bias = scratch, *buffer = scratch_after(bias, CHUNK);
  const float *loads = load(b->load, first, count, buffer);
  load_into(b->master, first, count, bias);
  for (int64_t i = 0; i < count; i++) bias[i] -= b->rate * (float)((loads[i] > 0) - (loads[i] < 0));
  store(b->master, first, count, bias);
  if (b->copy) store(b->copy, first, count, bias);
}

void FSDP_CPU(balance)(const fsdp_kernel_call *call) {
  enum { LOAD, SCALARS, FACTOR, MASTER, M, V, COPY };
  const fsdp_view *o = open_operands(call, 0);
  const float factor = *(const float *)o[FACTOR].data;
  balancing b = {.load = &o[LOAD],
                 .master = &o[MASTER],
                 .copy = call->operand_count > COPY ? &o[COPY] : NULL,
                 .count = o[LOAD].numel,
                 .rate = call->attrs->balance_rate};
  if (factor == FSDP_FACTOR_SKIP) return;
  fsdp_pool_run(call->pool, blocks_of(b.count, CHUNK), balance_chunk, &b);
}
