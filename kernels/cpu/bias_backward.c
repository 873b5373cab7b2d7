// The gradient of a linear layer's bias: the sum of d_y's rows. d_y is columns [out_offset, out_offset + out)
// of N rows that are out_stride wide.
#include "kernels/cpu/operand.h"
#include "kernels/cpu/ops.h"

enum {
  COLUMNS_PER_TASK = 256,
  ROWS_PER_SUM = 128, // partial sums over rows stay short, so that fp32 is enough
};

// A block of columns; the order of its sums depends on N alone.
static void sum_columns(void *argument, int64_t index, void *scratch) {
  const fsdp_kernel_call *call = argument;
  const fsdp_op_attrs *attrs = call->attrs;
  const fsdp_view *d_y = &call->operands[0], *d_bias = &call->operands[1];
  int64_t N = attrs->batch * attrs->seq, first = index * COLUMNS_PER_TASK;
  int64_t count = fsdp_min_i64(COLUMNS_PER_TASK, attrs->out_features - first);
  float buffer[COLUMNS_PER_TASK], total[COLUMNS_PER_TASK] = {0};
  (void)scratch;
  for (int64_t block = 0; block < N; block += ROWS_PER_SUM) {
    float sums[COLUMNS_PER_TASK] = {0};
    for (int64_t n = block; n < fsdp_min_i64(N, block + ROWS_PER_SUM); n++) {
      const float *row = load(d_y, n * attrs->out_stride + attrs->out_offset + first, count, buffer);
      for (int64_t c = 0; c < count; c++) sums[c] += row[c];
    }
    for (int64_t c = 0; c < count; c++) total[c] += sums[c];
  }
  if (updates(d_bias)) {
    load_into(d_bias, first, count, buffer);
    for (int64_t c = 0; c < count; c++) total[c] += buffer[c];
  }
  store(d_bias, first, count, total);
}

void FSDP_CPU(bias_backward)(const fsdp_kernel_call *call) {
  open_operands(call, 0);
  fsdp_pool_run(call->pool, blocks_of(call->attrs->out_features, COLUMNS_PER_TASK), sum_columns,
                (void *)(uintptr_t)call);
}
