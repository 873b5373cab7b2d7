// Changes of placement. Operands: what is converted and what it becomes; one alone, updated, is summed where
// it lies; one alone, read, stays as it is, and only its gradient is summed.
#include "models/graph/backward.h"
#include "models/graph/op_row.h"
#include "runtime/base/check.h"

fsdp_node *fsdp_graph_redistribute(fsdp_graph *graph, int module, int block,
                                   const fsdp_conversion *conversion, int source, int made) {
  fsdp_node *n = fsdp_graph_forward_node(graph, FSDP_OP_REDISTRIBUTE, module, block);
  n->conversion = *conversion;
  fsdp_node_operand_add(n, source, source == made ? FSDP_UPDATE : FSDP_READ);
  if (made >= 0 && made != source) fsdp_node_operand_add(n, made, FSDP_WRITE);
  return n;
}

bool fsdp_node_redistributes(const fsdp_node *node) {
  return node->kind == FSDP_OP_REDISTRIBUTE;
}

// The gradient of a summand is that of the sum; any other value's gradient lies as the value does. It has the
// dtype of the made value's, which may differ from the value's own.
void fsdp_op_redistribute_emit(fsdp_graph *graph, const fsdp_node *f) {
  const fsdp_conversion *c = &f->conversion;
  fsdp_conversion back = {.axes = c->axes,
                          .from = c->gradient,
                          .to = c->from == FSDP_SPREAD_PARTIAL ? FSDP_SPREAD_WHOLE : c->from,
                          .columns = c->columns,
                          .used_columns = c->used_columns};
  back.gradient = back.to;
  int source = f->operands[0].value, made = f->operands[f->operand_count - 1].value;
  if (graph->values[made].dtype == FSDP_VALUE_I32) return; // a choice has no gradient
  if (back.from == back.to) {
    if (source == made) return;
    FSDP_CHECK(graph->values[source].gradient < 0, "'%s' has a gradient already", graph->values[source].name);
    graph->values[source].gradient = fsdp_backward_gradient(graph, made);
    return;
  }
  fsdp_node *n = fsdp_backward_node(graph, FSDP_OP_REDISTRIBUTE, f);
  n->conversion = back;
  fsdp_access access = source == made ? FSDP_UPDATE : FSDP_READ;
  const int gradient = fsdp_backward_gradient(graph, made);
  fsdp_node_operand_add(n, gradient, access);
  if (source != made) fsdp_backward_output_as(graph, n, source, graph->values[gradient].dtype);
}
