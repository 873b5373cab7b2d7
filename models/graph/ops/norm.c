// RMSNorm and LayerNorm, each alone and of a sum, and RMSNorm of heads.
#include "models/graph/backward.h"
#include "models/graph/op_row.h"
#include "runtime/base/size.h"

// The backward of the norm that was taken of the sum `h`, whose gradient both summands have (backward.h).
static void emit_added(fsdp_graph *graph, const fsdp_node *f, fsdp_op_kind kind, int h) {
  fsdp_backward_by_names(graph, kind, f);
  for (int i = 0; i < 2; i++)
    graph->values[f->operands[i].value].gradient = fsdp_backward_gradient(graph, f->operands[h].value);
}

// ---- RMSNorm

void fsdp_op_add_rmsnorm_emit(fsdp_graph *graph, const fsdp_node *f) {
  emit_added(graph, f, FSDP_OP_RMSNORM_BACKWARD, 3);
}

// If the sum was kept, only its norm remains to be done.
bool fsdp_op_add_rmsnorm_recompute(const bool *kept, fsdp_op_remainder *remainder) {
  enum { WEIGHT = 2, H, Y, RSTD };
  if (!kept[H]) return false;
  *remainder =
      (fsdp_op_remainder){.kind = FSDP_OP_RMSNORM, .operands = {H, WEIGHT, Y, RSTD}, .operand_count = 4};
  return true;
}

// Blocks' partial sums of d_weight.
int64_t fsdp_op_rmsnorm_backward_cuda_bytes(const fsdp_op_attrs *attrs, int64_t flat_elems) {
  (void)flat_elems;
  return 4 * attrs->channels * fsdp_min_i64(attrs->batch * attrs->seq, 512);
}

// ---- LayerNorm

void fsdp_op_add_layernorm_emit(fsdp_graph *graph, const fsdp_node *f) {
  emit_added(graph, f, FSDP_OP_LAYERNORM_BACKWARD, 4);
}

// If the sum was kept, only its norm remains to be done.
bool fsdp_op_add_layernorm_recompute(const bool *kept, fsdp_op_remainder *remainder) {
  enum { WEIGHT = 2, BIAS, H, Y, MEAN, RSTD };
  if (!kept[H]) return false;
  *remainder = (fsdp_op_remainder){
      .kind = FSDP_OP_LAYERNORM, .operands = {H, WEIGHT, BIAS, Y, MEAN, RSTD}, .operand_count = 6};
  return true;
}

// Blocks' partial sums of d_weight, then those of d_bias.
int64_t fsdp_op_layernorm_backward_cuda_bytes(const fsdp_op_attrs *attrs, int64_t flat_elems) {
  (void)flat_elems;
  return 4 * 2 * attrs->channels * fsdp_min_i64(attrs->batch * attrs->seq, 512);
}

// ---- Each head of q and of k, before their rotation

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
