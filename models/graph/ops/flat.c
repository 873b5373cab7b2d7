// Movement and state over flat ranges; columns of wider rows, copied out of them and into them.
#include "models/graph/backward.h"
#include "models/graph/op_row.h"
#include "runtime/base/check.h"
#include "runtime/base/size.h"

// Blocks leave partial sums in fp64, which a second kernel adds in a fixed order.
int64_t fsdp_op_sum_squares_cuda_bytes(const fsdp_op_attrs *attrs, int64_t flat_elems) {
  (void)attrs;
  return 8 * fsdp_max_i64(1, fsdp_min_i64(1024, (flat_elems + 8191) / 8192));
}

// Both summands have the sum's gradient (backward.h).
void fsdp_op_add_emit(fsdp_graph *graph, const fsdp_node *f) {
  int source = f->operands[0].value, sum = f->operands[1].value;
  FSDP_CHECK(graph->values[source].gradient < 0, "'%s' has a gradient already", graph->values[source].name);
  graph->values[source].gradient = fsdp_backward_gradient(graph, sum);
}

// Of dropout: the gradient of what is added to the residual stream is the stream's own, which stays as it is.
void fsdp_op_dropout_emit(fsdp_graph *graph, const fsdp_node *f) {
  enum { X, DRAWS };
  const int x = f->operands[X].value;
  fsdp_node *n = fsdp_backward_node(graph, FSDP_OP_DROPOUT_BACKWARD, f);
  fsdp_node_operand_add(n, fsdp_backward_gradient(graph, x), FSDP_READ);
  graph->values[x].gradient = -1;
  fsdp_backward_output(graph, n, x);
  fsdp_node_operand_add(n, f->operands[DRAWS].value, FSDP_READ);
}

// ---- Columns

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
