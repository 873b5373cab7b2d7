// SwiGLU (Shazeer 2020): s = silu(gate) * up over rows of gate|up, I columns each; silu(x) = x * sigmoid(x).
// Of experts, times the weight of the routed row.
#include "kernels/cpu/operand.h"

enum { CHUNK = 1024 }; // columns at a time, so that a converted chunk stays in the first-level cache

typedef struct gated {
  const fsdp_view *gate_up, *s, *d_s; // backward: gate_up's gradient takes its place
  int64_t I;
  // Of experts, else NULL: weights by slot, and their gradient; the row's slot.
  const float *weights;
  float *d_weights;
  int64_t slot;
} gated;

FSDP_INLINE fsdp_vf sigmoid(fsdp_vf x) {
  return 1.0f / (1.0f + vf_exp(-x));
}

// Of whole vectors.
static void activate(const float *gate, const float *up, float *s, int64_t count) {
  for (int64_t i = 0; i < count; i += FSDP_LANES) {
    fsdp_vf g = vf_load(gate + i);
    vf_store(s + i, g * sigmoid(g) * vf_load(up + i));
  }
}

static void differentiate(const float *gate, const float *up, const float *d_s, float *d_gate, float *d_up,
                          int64_t count) {
  for (int64_t i = 0; i < count; i += FSDP_LANES) {
    fsdp_vf g = vf_load(gate + i), u = vf_load(up + i), d = vf_load(d_s + i), sig = sigmoid(g);
    vf_store(d_gate + i, d * u * sig * (1.0f + g * (1.0f - sig)));
    vf_store(d_up + i, d * g * sig);
  }
}

static void scale(float *values, float factor, int64_t count) {
  for (int64_t i = 0; i < count; i++) values[i] *= factor;
}

static void forward_row(void *argument, int64_t n, void *scratch) {
  const gated *k = argument;
  float *buffer = scratch;
  for (int64_t c = 0; c < k->I; c += CHUNK) {
    int64_t count = fsdp_min_i64(CHUNK, k->I - c);
    const float *gate = load_vectors(k->gate_up, n * 2 * k->I + c, count, buffer);
    const float *up = load_vectors(k->gate_up, (n * 2 + 1) * k->I + c, count, buffer + CHUNK);
    float *s = result_vectors(k->s, n * k->I + c, count, buffer + 2 * CHUNK);
    activate(gate, up, s, count);
    if (k->weights) scale(s, k->weights[k->slot], count);
    store(k->s, n * k->I + c, count, s);
  }
}

void FSDP_CPU(swiglu)(const fsdp_kernel_call *call) {
  int64_t N = call->attrs->batch * call->attrs->seq, I = call->attrs->intermediate;
  const fsdp_view *o = open_operands(call, 0);
  gated k = {.I = I, .gate_up = &o[0], .s = &o[1]};
  fsdp_pool_run(call->pool, N, forward_row, &k);
}

// Adds these columns' part of the weight's gradient, and returns the gradient of silu(gate) * up.
static const float *weigh(const gated *k, const float *gate, const float *up, const float *d_s, int64_t count,
                          float *buffer, float *d_weight) {
  activate(gate, up, buffer, count);
  *d_weight += vf_dot(d_s, buffer, count);
  memcpy(buffer, d_s, (size_t)count * sizeof(float));
  scale(buffer, k->weights[k->slot], count);
  return buffer;
}

static void backward_row(void *argument, int64_t n, void *scratch) {
  const gated *k = argument;
  float *buffer = scratch, d_weight = 0;
  for (int64_t c = 0; c < k->I; c += CHUNK) {
    int64_t count = fsdp_min_i64(CHUNK, k->I - c), at_gate = n * 2 * k->I + c, at_up = at_gate + k->I;
    const float *gate = load_vectors(k->gate_up, at_gate, count, buffer);
    const float *up = load_vectors(k->gate_up, at_up, count, buffer + CHUNK);
    const float *d_s = load_vectors(k->d_s, n * k->I + c, count, buffer + 2 * CHUNK);
    float *d_gate = result_vectors(k->gate_up, at_gate, count, buffer + 3 * CHUNK);
    float *d_up = result_vectors(k->gate_up, at_up, count, buffer + 4 * CHUNK);
    if (k->weights) d_s = weigh(k, gate, up, d_s, count, buffer + 5 * CHUNK, &d_weight);
    differentiate(gate, up, d_s, d_gate, d_up, count);
    store(k->gate_up, at_gate, count, d_gate);
    store(k->gate_up, at_up, count, d_up);
  }
  if (k->weights) k->d_weights[k->slot] += d_weight;
}

void FSDP_CPU(swiglu_backward)(const fsdp_kernel_call *call) {
  int64_t N = call->attrs->batch * call->attrs->seq, I = call->attrs->intermediate;
  const fsdp_view *o = open_operands(call, 0);
  gated k = {.I = I, .d_s = &o[0], .gate_up = &o[1]};
  fsdp_pool_run(call->pool, N, backward_row, &k);
}

// Routed rows, each by its slot: those of the op's experts, begin to end - 1, of which the operands have
// `room` from `first` on. Other ops, or other ranks, have the others.
typedef struct routed {
  gated rows;
  const int32_t *places;
  int64_t begin, end, first, room;
  bool adds; // to d_weights
} routed;

static routed routed_of(const fsdp_kernel_call *call, const fsdp_view *places, const fsdp_view *offsets) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int32_t *ends = offsets->data;
  return (routed){.rows = {.I = attrs->intermediate},
                  .places = places->data,
                  .begin = ends[0],
                  .end = ends[attrs->experts],
                  .first = attrs->first_routed,
                  .room = fsdp_op_letter_size(attrs, 'u', 0)};
}

static int64_t row_of(const routed *r, int64_t slot) {
  const int64_t place = r->places[slot], row = place - r->first;
  return place >= r->begin && place < r->end && row < r->room ? row : -1;
}

static void forward_slot(void *argument, int64_t slot, void *scratch) {
  const routed *r = argument;
  gated k = r->rows;
  k.slot = slot;
  if (row_of(r, slot) >= 0) forward_row(&k, row_of(r, slot), scratch);
}

static void backward_slot(void *argument, int64_t slot, void *scratch) {
  const routed *r = argument;
  gated k = r->rows;
  k.slot = slot;
  if (!r->adds) k.d_weights[slot] = 0;
  if (row_of(r, slot) >= 0) backward_row(&k, row_of(r, slot), scratch);
}

static int64_t slots_of(const fsdp_kernel_call *call) {
  return call->attrs->batch * call->attrs->seq * call->attrs->slots;
}

void FSDP_CPU(expert_swiglu)(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call, 0);
  routed r = routed_of(call, &o[2], &o[3]);
  r.rows.gate_up = &o[0], r.rows.s = &o[4], r.rows.weights = o[1].data;
  fsdp_pool_run(call->pool, slots_of(call), forward_slot, &r);
}

void FSDP_CPU(expert_swiglu_backward)(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call, 0);
  routed r = routed_of(call, &o[2], &o[3]);
  r.rows.d_s = &o[0], r.rows.gate_up = &o[4];
  r.rows.weights = o[1].data, r.rows.d_weights = o[5].data;
  r.adds = updates(&o[5]);
  fsdp_pool_run(call->pool, slots_of(call), backward_slot, &r);
}
