// GELU in the form with tanh.
#include "models/graph/backward.h"
#include "models/graph/op_row.h"

void fsdp_op_gelu_emit(fsdp_graph *graph, const fsdp_node *f) {
  int x = f->operands[0].value, y = f->operands[1].value;
  fsdp_node *n = fsdp_backward_node(graph, FSDP_OP_GELU_BACKWARD, f);
  fsdp_node_operand_add(n, fsdp_backward_gradient(graph, y), FSDP_READ);
  fsdp_backward_in_place(graph, n, x);
}
