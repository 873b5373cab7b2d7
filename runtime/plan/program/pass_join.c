// Joins gemms of one origin whose weights (or weights' gradients) lie one after the other in a unit's buffer,
// with no padding between: their outputs are neighbouring columns, so one gemm computes them all.
#include "runtime/plan/program/passes.h"

static int weight_operand(fsdp_op_kind op) {
  return fsdp_op_slice_weight(fsdp_op_letters_of(op));
}

static bool are_joinable(const fsdp_list_node *a, const fsdp_list_node *b) {
  if (a->instr.kind != FSDP_INSTR_OP || b->instr.kind != FSDP_INSTR_OP) return false;
  int w = weight_operand(a->instr.op);
  if (w < 0 || a->instr.op != b->instr.op || a->origin != b->origin) return false;
  const fsdp_operand *x = &a->operands[w], *y = &b->operands[w];
  return x->tensor == y->tensor && x->offset.base + x->size_bytes == y->offset.base &&
         a->instr.attrs.out_offset + a->instr.attrs.out_features == b->instr.attrs.out_offset &&
         a->instr.attrs.in_features == b->instr.attrs.in_features;
}

void pass_join(step_builder *s) {
  fsdp_nodes *list = &s->nodes;
  for (int n = list->first; n != FSDP_NO_NODE; n = list->nodes[n].next) {
    fsdp_list_node *a = &list->nodes[n];
    while (a->next != FSDP_NO_NODE && are_joinable(a, &list->nodes[a->next])) {
      const fsdp_list_node *b = &list->nodes[a->next];
      int w = weight_operand(a->instr.op);
      a->operands[w].size_bytes += b->operands[w].size_bytes;
      a->instr.attrs.out_features += b->instr.attrs.out_features;
      fsdp_nodes_remove(list, a->next);
    }
  }
}
