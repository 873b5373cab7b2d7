// Learned positions: a table (M, C), whose row of its position is added to each row of h, and its gradient. B
// sequences of T positions; which rows they have is kernels/row_map.h's. A position counts from the start of
// its document, of which a sequence has several. Positions of M or more are padding: nothing is added to
// their rows, and they have no gradient.
#include "kernels/cpu/operand.h"
#include "kernels/row_map.h"

typedef struct lookup {
  const fsdp_view *weight, *h;     // forward
  const fsdp_view *d_h, *d_weight; // backward
  const int32_t *starts;           // of documents; or NULL
  fsdp_row_map rows;
  int64_t documents, B, T, M, C;
} lookup;

static lookup lookup_of(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  lookup k = {.starts = fsdp_kernel_given(call, FSDP_GIVEN_BY_DOCUMENTS),
              .documents = attrs->documents,
              .rows = fsdp_row_map_of(call),
              .B = attrs->batch,
              .T = attrs->seq,
              .M = attrs->positions,
              .C = attrs->channels};
  FSDP_CHECK((size_t)(k.C + 16) * 2 * sizeof(float) <= FSDP_POOL_SCRATCH_BYTES,
             "a row of %lld channels exceeds the scratch", (long long)k.C);
  return k;
}

// Rows of the table: those of the positions of a sequence, and with documents any of them.
static void report_rows(const fsdp_kernel_call *call, const lookup *k, int operand, fsdp_access access) {
  if (k->starts) fsdp_kernel_report(call, operand, 0, k->M * k->C, access);
  if (k->starts) return;
  for (int chunk = 0; chunk < 2; chunk++) {
    fsdp_row_range range = fsdp_row_positions(&k->rows, chunk, k->M);
    fsdp_kernel_report(call, operand, range.first * k->C, range.count * k->C, access);
  }
}

static void add_row(void *argument, int64_t n, void *scratch) {
  const lookup *k = argument;
  float *weight_buffer = scratch, *h_buffer = scratch_after(weight_buffer, k->C);
  int64_t position = fsdp_row_position(&k->rows, n % k->T), C = k->C;
  if (k->starts) position -= k->starts[n / k->T * k->documents + position];
  int64_t row = fsdp_row_of(&k->rows, n / k->T, n % k->T);
  if (position >= k->M) return;
  const float *weight = load(k->weight, position * C, C, weight_buffer);
  float *h = result(k->h, row * C, h_buffer);
  if (h == h_buffer) load_into(k->h, row * C, C, h);
  for (int64_t c = 0; c < C; c++) h[c] += weight[c];
  store(k->h, row * C, C, h);
}

void FSDP_CPU(add_positions)(const fsdp_kernel_call *call) {
  lookup k = lookup_of(call);
  const fsdp_view *o = open_operands(call, PART(0));
  k.weight = &o[0], k.h = &o[1];
  report_rows(call, &k, 0, FSDP_READ);
  fsdp_pool_run(call->pool, k.B * k.T, add_row, &k);
}

static void add_gradient(const lookup *k, int64_t b, int64_t t, float *sum, float *buffer) {
  const float *d_h = load(k->d_h, fsdp_row_of(&k->rows, b, t) * k->C, k->C, buffer);
  for (int64_t c = 0; c < k->C; c++) sum[c] += d_h[c];
}

// Adds the gradients of the rows at `position` in any document of sequence b.
static void add_documents(const lookup *k, int64_t b, int64_t position, float *sum, float *buffer) {
  const int32_t *starts = k->starts + b * k->documents;
  for (int64_t t = 0; t < k->T; t++) {
    int64_t at = fsdp_row_position(&k->rows, t);
    if (at - starts[at] == position) add_gradient(k, b, t, sum, buffer);
  }
}

// Sums a row's gradients in fp32, sequence by sequence in order, and stores it once.
static void sum_row(void *argument, int64_t position, void *scratch) {
  const lookup *k = argument;
  int64_t t = fsdp_row_index(&k->rows, position), C = k->C;
  bool used = t >= 0 || k->starts;
  if (!used && updates(k->d_weight)) return;
  float *sum = scratch, *buffer = scratch_after(sum, C);
  memset(sum, 0, (size_t)C * sizeof *sum);
  for (int64_t b = 0; used && b < k->B; b++) {
    if (k->starts)
      add_documents(k, b, position, sum, buffer);
    else
      add_gradient(k, b, t, sum, buffer);
  }
  store_sums(k->d_weight, position * C, C, sum, buffer);
}

void FSDP_CPU(positions_backward)(const fsdp_kernel_call *call) {
  lookup k = lookup_of(call);
  bool adds = call->operand_count >= 2 && updates(&call->operands[1]); // to the positions' rows alone
  const fsdp_view *o = open_operands(call, adds ? PART(1) : 0);
  k.d_h = &o[0], k.d_weight = &o[1];
  if (adds) report_rows(call, &k, 1, FSDP_UPDATE);
  fsdp_pool_run(call->pool, k.M, sum_row, &k);
}
