// Columns of wider rows, copied out of them and into them.
#include "models/graph/backward.h"
#include "models/graph/op_row.h"
#include "runtime/base/size.h"

// Of the slice, what other ranks take stays.
void fsdp_op_take_columns_work(const fsdp_op_attrs *attrs, const fsdp_op_extent *operands,
                               fsdp_op_work *work) {
  int64_t taken = fsdp_min_i64(attrs->in_features, attrs->out_features - attrs->first_index);
  int64_t others = attrs->batch * attrs->seq * (attrs->out_features - fsdp_max_i64(taken, 0));
  work->bytes -= (double)(others * fsdp_dtype_bytes(operands[0].dtype));
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
