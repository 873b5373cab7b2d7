// What every row goes to beside its routed experts: its output times the sigmoid of the row's number, and the
// sum of both. N rows, C channels.
#include "kernels/cpu/operand.h"

#include <math.h>

enum { CHUNK = 1024 }; // columns at a time

typedef struct shared {
  const fsdp_view *o;
  int64_t C;
} shared;

static float sigmoid_of(const fsdp_view *gate, int64_t n) {
  float buffer[1];
  return 1 / (1 + expf(-*load(gate, n, 1, buffer)));
}

static void gate_row(void *argument, int64_t n, void *scratch) {
  const shared *k = argument;
  float *x = scratch;
  const float factor = sigmoid_of(&k->o[1], n);
  for (int64_t c = 0; c < k->C; c += CHUNK) {
    const int64_t count = fsdp_min_i64(CHUNK, k->C - c);
    load_into(&k->o[0], n * k->C + c, count, x);
    for (int64_t i = 0; i < count; i++) x[i] *= factor;
    store(&k->o[2], n * k->C + c, count, x);
  }
}

// d_y = sigmoid * d_gated, d_gate = sum(d_gated * y) * sigmoid * (1 - sigmoid).
static void gate_backward_row(void *argument, int64_t n, void *scratch) {
  const shared *k = argument;
  float *y = scratch, *buffer = scratch_after(y, CHUNK), dot = 0;
  const float factor = sigmoid_of(&k->o[1], n);
  for (int64_t c = 0; c < k->C; c += CHUNK) {
    const int64_t count = fsdp_min_i64(CHUNK, k->C - c), at = n * k->C + c;
    const float *d = load(&k->o[0], at, count, buffer);
    load_into(&k->o[2], at, count, y);
    for (int64_t i = 0; i < count; i++) {
      dot += d[i] * y[i];
      y[i] = d[i] * factor;
    }
    store(&k->o[2], at, count, y);
  }
  dot *= factor * (1 - factor);
  store_sums(&k->o[3], n, 1, &dot, buffer);
}

static void add_row(void *argument, int64_t n, void *scratch) {
  const shared *k = argument;
  float *x = scratch, *buffer = scratch_after(x, CHUNK);
  for (int64_t c = 0; c < k->C; c += CHUNK) {
    const int64_t count = fsdp_min_i64(CHUNK, k->C - c), at = n * k->C + c;
    const float *y = load(&k->o[1], at, count, buffer);
    load_into(&k->o[0], at, count, x);
    for (int64_t i = 0; i < count; i++) x[i] += y[i];
    store(&k->o[2], at, count, x);
  }
}

static void run(const fsdp_kernel_call *call, void (*row)(void *, int64_t, void *)) {
  shared k = {.o = open_operands(call, 0), .C = call->attrs->channels};
  fsdp_pool_run(call->pool, call->attrs->batch * call->attrs->seq, row, &k);
}

void FSDP_CPU(shared_gate)(const fsdp_kernel_call *call) {
  run(call, gate_row);
}

void FSDP_CPU(shared_gate_backward)(const fsdp_kernel_call *call) {
  run(call, gate_backward_row);
}

void FSDP_CPU(shared_add)(const fsdp_kernel_call *call) {
  run(call, add_row);
}
