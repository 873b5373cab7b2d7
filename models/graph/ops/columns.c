// Columns of wider rows, copied out of them and into them.
#include "models/graph/backward.h"
#include "models/graph/op_row.h"
#include "runtime/base/size.h"

// Of an operand with whole rows of out_stride, only `columns` are accessed.
static double other_bytes(const fsdp_op_attrs *attrs, const fsdp_op_extent *rows, int64_t columns) {
  int64_t others = attrs->batch * attrs->seq * (attrs->out_stride - columns);
  return (rows->access == FSDP_UPDATE ? 2.0 : 1.0) * (double)(others * fsdp_dtype_bytes(rows->dtype));
}

void fsdp_op_take_columns_work(const fsdp_op_attrs *attrs, const fsdp_op_extent *operands,
                               fsdp_op_work *work) {
  int64_t taken = fsdp_min_i64(attrs->in_features, attrs->out_features - attrs->first_index);
  work->bytes -= other_bytes(attrs, &operands[0], fsdp_max_i64(taken, 0));
}

void fsdp_op_split_columns_work(const fsdp_op_attrs *attrs, const fsdp_op_extent *operands,
                                fsdp_op_work *work) {
  work->bytes -= other_bytes(attrs, &operands[0], attrs->out_features);
}

void fsdp_op_join_columns_work(const fsdp_op_attrs *attrs, const fsdp_op_extent *operands,
                               fsdp_op_work *work) {
  work->bytes -= other_bytes(attrs, &operands[1], attrs->out_features);
}

// The gradient of what was taken takes the place of those columns in that of the whole rows, which another
// reader of them has made.
void fsdp_op_take_columns_emit(fsdp_graph *graph, const fsdp_node *f) {
  fsdp_node *n = fsdp_backward_node(graph, FSDP_OP_PUT_COLUMNS, f);
  fsdp_node_operand_add(n, fsdp_backward_gradient(graph, f->operands[1].value), FSDP_READ);
  fsdp_node_operand_add(n, fsdp_backward_gradient(graph, f->operands[0].value), FSDP_UPDATE);
}

// Of a choice, an order, a count, and what is zero where its gradient is, too: there is nothing to do.
void fsdp_op_no_emit(fsdp_graph *graph, const fsdp_node *f) {
  (void)graph, (void)f;
}
