// RMSNorm of each head of q and of k, before their rotation.
#include "models/graph/backward.h"
#include "models/graph/op_row.h"
#include "runtime/base/size.h"

// The gradient of y becomes that of q|k|v where it lies: the columns of v have the same one.
void fsdp_op_qk_norm_emit(fsdp_graph *graph, const fsdp_node *f) {
  enum { QKV, Q_WEIGHT, K_WEIGHT, Y, RSTD };
  const fsdp_node_operand *o = f->operands;
  int gradient = fsdp_backward_gradient(graph, o[Y].value);
  fsdp_node *n = fsdp_backward_node(graph, FSDP_OP_QK_NORM_BACKWARD, f);
  fsdp_node_operand_add(n, o[QKV].value, FSDP_READ);
  fsdp_node_operand_add(n, o[RSTD].value, FSDP_READ);
  fsdp_node_operand_add(n, o[Q_WEIGHT].value, FSDP_READ);
  fsdp_node_operand_add(n, o[K_WEIGHT].value, FSDP_READ);
  fsdp_node_operand_add(n, gradient, FSDP_UPDATE);
  fsdp_backward_output(graph, n, o[Q_WEIGHT].value);
  fsdp_backward_output(graph, n, o[K_WEIGHT].value);
  graph->values[o[QKV].value].gradient = gradient;
}

// Partial sums of d_q_weight, then those of d_k_weight.
int64_t fsdp_op_qk_norm_backward_bytes(const fsdp_op_attrs *attrs, int64_t flat_elems) {
  (void)flat_elems;
  return 4 * 2 * attrs->head_dim * fsdp_min_i64(attrs->batch * attrs->seq, 512);
}
