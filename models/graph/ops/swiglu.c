// SwiGLU: s = silu(gate) * up.
#include "models/graph/backward.h"
#include "models/graph/op_row.h"

void fsdp_op_swiglu_emit(fsdp_graph *graph, const fsdp_node *f) {
  int gate_up = f->operands[0].value, s = f->operands[1].value;
  fsdp_node *n = fsdp_backward_node(graph, FSDP_OP_SWIGLU_BACKWARD, f);
  fsdp_node_operand_add(n, fsdp_backward_gradient(graph, s), FSDP_READ);
  fsdp_backward_in_place(graph, n, gate_up);
}
