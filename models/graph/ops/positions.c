// Learned positions: a table's rows, added to the residual stream by position.
#include "models/graph/op_row.h"

// The bytes of the table's rows that a sequence has; `table` is the whole table. Padding has none.
static double rows_bytes(const fsdp_op_attrs *attrs, const fsdp_op_extent *table) {
  int64_t rows = attrs->seq < attrs->positions ? attrs->seq : attrs->positions;
  return (double)table->bytes / (double)attrs->positions * (double)rows;
}

// It reads one row of its table for each position, not the table.
void fsdp_op_add_positions_work(const fsdp_op_attrs *attrs, const fsdp_op_extent *operands,
                                fsdp_op_work *work) {
  work->bytes += rows_bytes(attrs, &operands[0]) - (double)operands[0].bytes;
}

// Written, the table is zeroed where there is no position; added to, its other rows stay.
void fsdp_op_positions_backward_work(const fsdp_op_attrs *attrs, const fsdp_op_extent *operands,
                                     fsdp_op_work *work) {
  if (operands[1].access != FSDP_UPDATE) return;
  work->bytes += 2 * (rows_bytes(attrs, &operands[1]) - (double)operands[1].bytes);
}
