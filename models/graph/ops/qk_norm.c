// RMSNorm of each head of q and of k, before their rotation.
#include "models/graph/backward.h"
#include "models/graph/op_row.h"
#include "runtime/base/size.h"

// The gradient of y becomes that of q|k|v where it lies: the columns of v have the same one.
void fsdp_op_qk_norm_emit(fsdp_graph *graph, const fsdp_node *f) {
  enum { QKV, Q_WEIGHT, K_WEIGHT, Y };
  graph->values[f->operands[QKV].value].gradient = fsdp_backward_gradient(graph, f->operands[Y].value);
  fsdp_backward_by_names(graph, FSDP_OP_QK_NORM_BACKWARD, f);
}

// Partial sums of d_q_weight, then those of d_k_weight.
int64_t fsdp_op_qk_norm_backward_bytes(const fsdp_op_attrs *attrs, int64_t flat_elems) {
  (void)flat_elems;
  return 4 * 2 * attrs->head_dim * fsdp_min_i64(attrs->batch * attrs->seq, 512);
}
