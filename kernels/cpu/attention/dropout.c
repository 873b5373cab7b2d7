// Dropout: y = x / (1 - rate) where the row's draw keeps the column, else 0; d_x is d_y likewise.
#include "kernels/cpu/attention/dropout.h"

typedef struct rows_of_dropout {
  dropping drop;
  const fsdp_view *x, *y; // the same, forward
  int64_t columns, first_column;
} rows_of_dropout;

// Columns [column, column + count) of the row, which lie in one run of DROPPED_COLUMNS of the whole's.
static void drop_run(const rows_of_dropout *k, int64_t row, uint64_t key, int64_t column, int64_t count,
                     float *buffer) {
  float factors[DROPPED_COLUMNS];
  const int64_t whole = k->first_column + column, begin = whole / DROPPED_COLUMNS * DROPPED_COLUMNS;
  const int64_t first = row * k->columns + column;
  drop_factors(&k->drop, key, 0, begin / FSDP_DROPOUT_COLUMNS, factors, 1);
  const float *x = load(k->x, first, count, buffer);
  float *y = result(k->y, first, buffer + DROPPED_COLUMNS);
  // A product with 0 would keep NaN.
  for (int64_t i = 0; i < count; i++) {
    const float factor = factors[whole - begin + i];
    y[i] = factor > 0 ? x[i] * factor : 0;
  }
  store(k->y, first, count, y);
}

static void drop_row(void *argument, int64_t row, void *scratch) {
  const rows_of_dropout *k = argument;
  if (!drops_row(&k->drop, row)) {
    if (k->x != k->y)
      memcpy(element(k->y, row * k->columns), element(k->x, row * k->columns),
             (size_t)(k->columns * fsdp_dtype_bytes(k->y->dtype)));
    return;
  }
  const uint64_t key = key_of_row(&k->drop, row);
  for (int64_t column = 0, count; column < k->columns; column += count) {
    count = DROPPED_COLUMNS - (k->first_column + column) % DROPPED_COLUMNS;
    count = fsdp_min_i64(count, k->columns - column);
    drop_run(k, row, key, column, count, scratch);
  }
}

static void drop(const fsdp_kernel_call *call, const fsdp_view *x, const fsdp_view *y) {
  const fsdp_op_attrs *attrs = call->attrs;
  const rows_of_dropout k = {.drop = dropping_of(call),
                             .x = x,
                             .y = y,
                             .columns = attrs->channels,
                             .first_column = attrs->first_index};
  const int64_t rows = attrs->batch * attrs->seq;
  FSDP_CHECK(x->dtype == y->dtype, "%s of %s into %s", fsdp_op_name(call->kind), fsdp_dtype_name(x->dtype),
             fsdp_dtype_name(y->dtype));
  FSDP_CHECK(k.drop.first_row >= 0 && k.drop.first_row + rows <= attrs->draws && k.first_column >= 0,
             "%s: rows %lld + %lld of %lld draws", fsdp_op_name(call->kind), (long long)k.drop.first_row,
             (long long)rows, (long long)attrs->draws);
  fsdp_pool_run(call->pool, rows, drop_row, (void *)(uintptr_t)&k);
}

void FSDP_CPU(dropout)(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call, 0);
  drop(call, &o[0], &o[0]);
}

void FSDP_CPU(dropout_backward)(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call, 0);
  drop(call, &o[0], &o[1]);
}
