// RMSNorm and LayerNorm, each alone and of a sum.
#include "models/graph/backward.h"
#include "models/graph/op_row.h"
#include "runtime/base/size.h"

// ---- RMSNorm

// h, weight, y and rstd of either norm; `h` is what the norm was taken of.
static void emit_rmsnorm(fsdp_graph *graph, const fsdp_node *f, int h, int weight, int y, int rstd) {
  fsdp_node *n = fsdp_backward_node(graph, FSDP_OP_RMSNORM_BACKWARD, f);
  fsdp_node_operand_add(n, h, FSDP_READ);
  fsdp_node_operand_add(n, rstd, FSDP_READ);
  fsdp_node_operand_add(n, weight, FSDP_READ);
  fsdp_node_operand_add(n, fsdp_backward_gradient(graph, y), FSDP_READ);
  fsdp_backward_output(graph, n, h);
  fsdp_backward_output(graph, n, weight);
}

void fsdp_op_rmsnorm_emit(fsdp_graph *graph, const fsdp_node *f) {
  const fsdp_node_operand *o = f->operands;
  emit_rmsnorm(graph, f, o[0].value, o[1].value, o[2].value, o[3].value);
}

// Both inputs of the sum have the sum's gradient (backward.h).
void fsdp_op_add_rmsnorm_emit(fsdp_graph *graph, const fsdp_node *f) {
  const fsdp_node_operand *o = f->operands;
  int x = o[0].value, delta = o[1].value, h = o[3].value;
  emit_rmsnorm(graph, f, h, o[2].value, o[4].value, o[5].value);
  graph->values[x].gradient = graph->values[delta].gradient = fsdp_backward_gradient(graph, h);
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

// The operands of either norm that its backward needs; `h` is what the norm was taken of.
typedef struct norm_values {
  int h, weight, bias, y, mean, rstd;
} norm_values;

static void emit_layernorm(fsdp_graph *graph, const fsdp_node *f, norm_values v) {
  fsdp_node *n = fsdp_backward_node(graph, FSDP_OP_LAYERNORM_BACKWARD, f);
  fsdp_node_operand_add(n, v.h, FSDP_READ);
  fsdp_node_operand_add(n, v.mean, FSDP_READ);
  fsdp_node_operand_add(n, v.rstd, FSDP_READ);
  fsdp_node_operand_add(n, v.weight, FSDP_READ);
  fsdp_node_operand_add(n, fsdp_backward_gradient(graph, v.y), FSDP_READ);
  fsdp_backward_output(graph, n, v.h);
  fsdp_backward_output(graph, n, v.weight);
  fsdp_backward_output(graph, n, v.bias);
}

void fsdp_op_layernorm_emit(fsdp_graph *graph, const fsdp_node *f) {
  const fsdp_node_operand *o = f->operands;
  emit_layernorm(graph, f,
                 (norm_values){.h = o[0].value,
                               .weight = o[1].value,
                               .bias = o[2].value,
                               .y = o[3].value,
                               .mean = o[4].value,
                               .rstd = o[5].value});
}

// Both inputs of the sum have the sum's gradient (backward.h).
void fsdp_op_add_layernorm_emit(fsdp_graph *graph, const fsdp_node *f) {
  const fsdp_node_operand *o = f->operands;
  int x = o[0].value, delta = o[1].value, h = o[4].value;
  emit_layernorm(graph, f,
                 (norm_values){.h = h,
                               .weight = o[2].value,
                               .bias = o[3].value,
                               .y = o[5].value,
                               .mean = o[6].value,
                               .rstd = o[7].value});
  graph->values[x].gradient = graph->values[delta].gradient = fsdp_backward_gradient(graph, h);
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
