// A linear layer's bias by itself: added to y, and its gradient, the sum of d_y's rows. y and d_y are columns
// [out_offset, out_offset + out) of N rows that are out_stride wide.
#include "kernels/cpu/operand.h"

enum {
  COLUMNS = 256,         // of a block of the bias that is added
  ROWS_PER_TASK = 16,    // to which one is added
  ROWS_PER_SUM = 128,    // partial sums over rows stay short, so that fp32 is enough
  COLUMNS_SUMMED = 2048, // of a task, at most
};

// Columns that a task sums: each thread has as many, and parts of rows are as long as can be.
typedef struct columns {
  const fsdp_kernel_call *call;
  int64_t each;
} columns;

typedef struct addition {
  const fsdp_op_attrs *attrs;
  const fsdp_view *bias, *from, *to;
} addition;

static void add_to_rows(void *argument, int64_t index, void *scratch) {
  const addition *a = argument;
  const fsdp_op_attrs *attrs = a->attrs;
  int64_t N = attrs->batch * attrs->seq, out = attrs->out_features;
  int64_t last = fsdp_min_i64(N, (index + 1) * ROWS_PER_TASK);
  float bias_buffer[COLUMNS], buffer[COLUMNS];
  (void)scratch;
  for (int64_t first = 0; first < out; first += COLUMNS) {
    int64_t count = fsdp_min_i64(COLUMNS, out - first);
    const float *added = load(a->bias, first, count, bias_buffer);
    for (int64_t n = index * ROWS_PER_TASK; n < last; n++) {
      int64_t at = n * attrs->out_stride + attrs->out_offset + first;
      load_into(a->from, at, count, buffer);
      for (int64_t c = 0; c < count; c++) buffer[c] += added[c];
      store(a->to, at, count, buffer);
    }
  }
}

void FSDP_CPU(add_bias_to)(const fsdp_kernel_call *call, const fsdp_view *bias, const fsdp_view *from,
                           const fsdp_view *to) {
  addition a = {call->attrs, bias, from, to};
  FSDP_CHECK(bias->dtype == to->dtype, "%s: a bias of %s in a sum of %s", fsdp_op_name(call->kind),
             fsdp_dtype_name(bias->dtype), fsdp_dtype_name(to->dtype));
  fsdp_pool_run(call->pool, blocks_of(a.attrs->batch * a.attrs->seq, ROWS_PER_TASK), add_to_rows, &a);
}

void FSDP_CPU(add_bias)(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call, 0);
  FSDP_CPU(add_bias_to)(call, &o[0], &o[1], &o[1]);
}

// A block of columns; the order of its sums depends on N alone.
static void sum_columns(void *argument, int64_t index, void *scratch) {
  const columns *k = argument;
  const fsdp_op_attrs *attrs = k->call->attrs;
  const fsdp_view *d_y = &k->call->operands[0];
  int64_t N = attrs->batch * attrs->seq, first = index * k->each;
  int64_t count = fsdp_min_i64(k->each, attrs->out_features - first);
  float *buffer = scratch, *total = scratch_after(buffer, count), *sums = scratch_after(total, count);
  memset(total, 0, (size_t)count * sizeof *total);
  for (int64_t block = 0; block < N; block += ROWS_PER_SUM) {
    memset(sums, 0, (size_t)count * sizeof *sums);
    for (int64_t n = block; n < fsdp_min_i64(N, block + ROWS_PER_SUM); n++) {
      const float *row = load(d_y, n * attrs->out_stride + attrs->out_offset + first, count, buffer);
      for (int64_t c = 0; c < count; c++) sums[c] += row[c];
    }
    for (int64_t c = 0; c < count; c++) total[c] += sums[c];
  }
  store_sums(&k->call->operands[1], first, count, total, buffer);
}

void FSDP_CPU(bias_backward)(const fsdp_kernel_call *call) {
  const int64_t out = call->attrs->out_features, threads = fsdp_pool_thread_count(call->pool);
  columns k = {call, fsdp_min_i64(COLUMNS_SUMMED, fsdp_round_up(blocks_of(out, threads), 16))};
  open_operands(call, 0);
  fsdp_pool_run(call->pool, blocks_of(out, k.each), sum_columns, &k);
}
