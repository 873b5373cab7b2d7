// Joins gemms of one origin whose weights and biases (or their gradients) each lie one after the other in a
// unit's buffer, with no padding between: their outputs are neighbouring columns, so one gemm computes them
// all. A sum of rows into biases' gradients joins likewise. Transposed weights do not join: one after the
// other they are no matrix with the columns of both.
#include "runtime/plan/program/passes.h"

// Whether operand `o` of b begins where that of a ends. -1: the op has no such operand.
static bool follows(const fsdp_list_node *a, const fsdp_list_node *b, int o) {
  if (o < 0) return true;
  const fsdp_operand *x = &a->operands[o], *y = &b->operands[o];
  return x->tensor == y->tensor && x->offset.base + x->size_bytes == y->offset.base;
}

static bool are_joinable(const fsdp_list_node *a, const fsdp_list_node *b) {
  if (a->instr.kind != FSDP_INSTR_OP || b->instr.kind != FSDP_INSTR_OP) return false;
  if (a->instr.op != b->instr.op || a->origin != b->origin) return false;
  const fsdp_op_letters *op = fsdp_op_letters_of(a->instr.op);
  int weight = fsdp_op_slice_weight(op), bias = fsdp_op_slice_bias(op);
  const fsdp_op_attrs *x = &a->instr.attrs, *y = &b->instr.attrs;
  if (weight < 0 && bias < 0) return false;
  if (weight >= 0 && op->operands[weight].transposable && (x->weight_transposed || y->weight_transposed))
    return false;
  return follows(a, b, weight) && follows(a, b, bias) && x->out_offset + x->out_features == y->out_offset &&
         x->in_features == y->in_features;
}

static void lengthen(fsdp_list_node *a, const fsdp_list_node *b, int o) {
  if (o >= 0) a->operands[o].size_bytes += b->operands[o].size_bytes;
}

void pass_join(step_builder *s) {
  fsdp_nodes *list = &s->nodes;
  for (int n = list->first; n != FSDP_NO_NODE; n = list->nodes[n].next) {
    fsdp_list_node *a = &list->nodes[n];
    while (a->next != FSDP_NO_NODE && are_joinable(a, &list->nodes[a->next])) {
      const fsdp_list_node *b = &list->nodes[a->next];
      const fsdp_op_letters *op = fsdp_op_letters_of(a->instr.op);
      lengthen(a, b, fsdp_op_slice_weight(op));
      lengthen(a, b, fsdp_op_slice_bias(op));
      a->instr.attrs.out_features += b->instr.attrs.out_features;
      fsdp_nodes_remove(list, a->next);
    }
  }
}
