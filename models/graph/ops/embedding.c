// Tables of which rows are taken: by token, and learned positions, which are added to the residual stream.
#include "models/graph/op_row.h"
#include "runtime/base/size.h"

// It reads one row of its table for each token, not the table.
void fsdp_op_embedding_work(const fsdp_op_attrs *attrs, const fsdp_op_extent *operands, fsdp_op_work *work) {
  (void)attrs;
  work->bytes += (double)operands[2].bytes - (double)operands[1].bytes;
}

// Written, the table is zeroed where there is no token; added to, its other rows stay.
void fsdp_op_embedding_backward_work(const fsdp_op_attrs *attrs, const fsdp_op_extent *operands,
                                     fsdp_op_work *work) {
  if (operands[2].access != FSDP_UPDATE) return;
  const int64_t rows = fsdp_min_i64(attrs->batch * attrs->seq, attrs->vocabulary);
  const double row_bytes = (double)(attrs->channels * fsdp_dtype_bytes(operands[2].dtype));
  work->bytes += 2 * ((double)rows * row_bytes - (double)operands[2].bytes);
}

// Positions sorted by token.
int64_t fsdp_op_embedding_backward_cuda_bytes(const fsdp_op_attrs *attrs, int64_t flat_elems) {
  (void)flat_elems;
  return 4 * (attrs->vocabulary + 1 + attrs->batch * attrs->seq);
}

// ---- Positions

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
