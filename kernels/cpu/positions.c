// Learned positions: row first + t of a table (M, C) added to h[b, t], and the table's gradient. B sequences
// of T positions, from `first` on.
#include "kernels/cpu/operand.h"
#include "kernels/cpu/ops.h"

typedef struct lookup {
  const fsdp_view *weight, *h;     // forward
  const fsdp_view *d_h, *d_weight; // backward
  int64_t B, T, M, C, first;
} lookup;

static lookup lookup_of(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  lookup k = {.B = attrs->batch,
              .T = attrs->seq,
              .M = attrs->positions,
              .C = attrs->channels,
              .first = attrs->first_index};
  FSDP_CHECK(k.first >= 0 && k.first + k.T <= k.M, "%s: positions %lld to %lld of a table of %lld",
             fsdp_op_name(call->kind), (long long)k.first, (long long)(k.first + k.T - 1), (long long)k.M);
  FSDP_CHECK((size_t)(k.C + 16) * 2 * sizeof(float) <= FSDP_POOL_SCRATCH_BYTES,
             "a row of %lld channels exceeds the scratch", (long long)k.C);
  return k;
}

static void add_row(void *argument, int64_t n, void *scratch) {
  const lookup *k = argument;
  float *weight_buffer = scratch, *h_buffer = scratch_after(weight_buffer, k->C);
  const float *weight = load(k->weight, (k->first + n % k->T) * k->C, k->C, weight_buffer);
  float *h = result(k->h, n * k->C, h_buffer);
  if (h == h_buffer) load_into(k->h, n * k->C, k->C, h);
  for (int64_t c = 0; c < k->C; c++) h[c] += weight[c];
  store(k->h, n * k->C, k->C, h);
}

void FSDP_CPU(add_positions)(const fsdp_kernel_call *call) {
  lookup k = lookup_of(call);
  const fsdp_view *o = open_operands(call, PART(0));
  k.weight = &o[0], k.h = &o[1];
  fsdp_kernel_report(call, 0, k.first * k.C, k.T * k.C, FSDP_READ);
  fsdp_pool_run(call->pool, k.B * k.T, add_row, &k);
}

// Sums a row's gradients in fp32, sequence by sequence in order, and stores it once.
static void sum_row(void *argument, int64_t row, void *scratch) {
  const lookup *k = argument;
  int64_t t = row - k->first, C = k->C;
  bool used = t >= 0 && t < k->T;
  if (!used && updates(k->d_weight)) return;
  float *sum = scratch, *buffer = scratch_after(sum, C);
  memset(sum, 0, (size_t)C * sizeof *sum);
  for (int64_t b = 0; used && b < k->B; b++) {
    const float *d_h = load(k->d_h, (b * k->T + t) * C, C, buffer);
    for (int64_t c = 0; c < C; c++) sum[c] += d_h[c];
  }
  if (updates(k->d_weight)) {
    const float *old = load(k->d_weight, row * C, C, buffer);
    for (int64_t c = 0; c < C; c++) sum[c] += old[c];
  }
  store(k->d_weight, row * C, C, sum);
}

void FSDP_CPU(positions_backward)(const fsdp_kernel_call *call) {
  lookup k = lookup_of(call);
  bool adds = call->operand_count == 2 && updates(&call->operands[1]); // to the positions' rows alone
  const fsdp_view *o = open_operands(call, adds ? PART(1) : 0);
  k.d_h = &o[0], k.d_weight = &o[1];
  if (adds) fsdp_kernel_report(call, 1, k.first * k.C, k.T * k.C, FSDP_UPDATE);
  fsdp_pool_run(call->pool, k.M, sum_row, &k);
}
