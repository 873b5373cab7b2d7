// Token embedding: rows of the weight (V, C) by token, and the dense gradient of the weight. N tokens. The
// weight may be V rows of a larger table, from `first` on: a token of a row outside them gives
// zeros, and its gradient is dropped, as is the padding token's.
#include "kernels/cpu/operand.h"

typedef struct lookup {
  const int32_t *tokens;
  const fsdp_view *weight, *h;     // forward
  const fsdp_view *d_h, *d_weight; // backward
  int64_t N, V, C;
  int64_t first, extent; // of the table: the weight's first row, and its rows
  int64_t padding;       // the padding token, or -1
  int64_t range_rows;    // rows of d_weight that a task sums
} lookup;

static lookup lookup_of(const fsdp_op_attrs *attrs) {
  lookup k = {.N = attrs->batch * attrs->seq,
              .V = attrs->vocabulary,
              .C = attrs->channels,
              .first = attrs->first_index,
              .padding = attrs->padding_token - 1};
  k.extent = attrs->extent ? attrs->extent : k.first + k.V;
  return k;
}

static void check_tokens(const fsdp_kernel_call *call, const lookup *k) {
  for (int64_t n = 0; n < k->N; n++)
    FSDP_CHECK(k->tokens[n] >= 0 && k->tokens[n] < k->extent,
               "%s: token %d at position %lld is not in [0, %lld)", fsdp_op_name(call->kind), k->tokens[n],
               (long long)n, (long long)k->extent);
}

// The row of the weight that a token names, or -1.
static int64_t row_of(const lookup *k, int64_t n) {
  int64_t row = k->tokens[n] - k->first;
  return row >= 0 && row < k->V ? row : -1;
}

// The row of d_weight that a position adds to, or -1.
static int64_t trained_row(const lookup *k, int64_t n) {
  return k->tokens[n] == k->padding ? -1 : row_of(k, n);
}

static void copy_row(void *argument, int64_t n, void *scratch) {
  const lookup *k = argument;
  (void)scratch;
  int64_t row = row_of(k, n);
  if (row < 0) {
    memset(element(k->h, n * k->C), 0, (size_t)(k->C * fsdp_dtype_bytes(k->h->dtype)));
    return;
  }
  FSDP_CPU(convert)
  (k->weight->dtype, element(k->weight, row * k->C), k->h->dtype, element(k->h, n * k->C), k->C);
}

void FSDP_CPU(embedding)(const fsdp_kernel_call *call) {
  lookup k = lookup_of(call->attrs);
  bool is_whole = !call->attrs->extent; // else some ranks' tokens may name no row: all of it counts as read
  const fsdp_view *o = open_operands(call, is_whole ? PART(1) : 0);
  k.tokens = o[0].data;
  k.weight = &o[1];
  k.h = &o[2];
  check_tokens(call, &k);
  for (int64_t n = 0; call->recorder && is_whole && n < k.N; n++)
    if (row_of(&k, n) >= 0) fsdp_kernel_report(call, 1, row_of(&k, n) * k.C, k.C, FSDP_READ);
  fsdp_pool_run(call->pool, k.N, copy_row, &k);
}

// Sums the gradients of a range of rows in fp32, token by token in order, and stores each row once.
static void sum_range(void *argument, int64_t index, void *scratch) {
  const lookup *k = argument;
  int64_t first = index * k->range_rows, rows = fsdp_min_i64(k->range_rows, k->V - first), C = k->C;
  float *buffer = scratch, *sums = scratch_after(buffer, C);
  unsigned char *used = (unsigned char *)scratch_after(sums, k->range_rows * C);
  memset(used, 0, (size_t)rows);
  for (int64_t n = 0; n < k->N; n++) {
    int64_t row = trained_row(k, n) - first;
    if (row < 0 || row >= rows) continue;
    float *sum = sums + row * C;
    const float *d_h = load(k->d_h, n * C, C, buffer);
    if (used[row]) {
      for (int64_t c = 0; c < C; c++) sum[c] += d_h[c];
    } else {
      memcpy(sum, d_h, (size_t)C * sizeof *sum);
      used[row] = 1;
    }
  }
  for (int64_t row = 0; row < rows; row++) {
    float *sum = sums + row * C;
    if (!used[row] && updates(k->d_weight)) continue;
    if (!used[row]) memset(sum, 0, (size_t)C * sizeof *sum);
    store_sums(k->d_weight, (first + row) * C, C, sum, buffer);
  }
}

void FSDP_CPU(embedding_backward)(const fsdp_kernel_call *call) {
  lookup k = lookup_of(call->attrs);
  // To the rows of these tokens alone.
  bool adds = call->operand_count == 3 && updates(&call->operands[2]) && !call->attrs->extent;
  const fsdp_view *o = open_operands(call, adds ? PART(2) : 0);
  k.tokens = o[0].data;
  k.d_h = &o[1];
  k.d_weight = &o[2];
  check_tokens(call, &k);
  for (int64_t n = 0; call->recorder && adds && n < k.N; n++)
    if (trained_row(&k, n) >= 0) fsdp_kernel_report(call, 2, trained_row(&k, n) * k.C, k.C, FSDP_UPDATE);
  // A range's sums take half of the scratch, so that they mostly stay in the cache.
  int64_t row_bytes = (k.C + 16) * (int64_t)sizeof(float) + 1;
  k.range_rows = fsdp_min_i64(k.V, (int64_t)FSDP_POOL_SCRATCH_BYTES / 2 / row_bytes);
  FSDP_CHECK(k.range_rows > 0, "a row of %lld channels exceeds the scratch", (long long)k.C);
  fsdp_pool_run(call->pool, blocks_of(k.V, k.range_rows), sum_range, &k);
}
