// The backward of a graph: walk the forward from its end and let each op's rule append nodes.
#include "models/graph/backward.h"

#include "models/graph/op_row.h"
#include "runtime/base/check.h"

#include <stdio.h>
#include <string.h>

fsdp_node *fsdp_backward_node(fsdp_graph *graph, fsdp_op_kind kind, const fsdp_node *forward) {
  fsdp_node *node = fsdp_graph_backward_node(graph, kind, forward->module, forward->block);
  node->attrs = forward->attrs;
  node->first_index = forward->first_index;
  node->second_index = forward->second_index;
  node->forward = (int)(forward - graph->forward);
  return node;
}

int fsdp_backward_gradient(const fsdp_graph *graph, int value) {
  FSDP_CHECK(graph->values[value].gradient >= 0, "no gradient reached '%s'", graph->values[value].name);
  return graph->values[value].gradient;
}

int fsdp_backward_gradient_made(fsdp_graph *graph, int value, fsdp_access *access) {
  *access = FSDP_UPDATE;
  if (graph->values[value].gradient >= 0) return graph->values[value].gradient;
  *access = FSDP_WRITE;
  fsdp_value of = graph->values[value];
  bool param = of.role == FSDP_VALUE_PARAM;
  char name[FSDP_NAME_BYTES];
  int length = snprintf(name, sizeof name, "d_%s", of.name);
  FSDP_CHECK(length < FSDP_NAME_BYTES, "gradient name longer than %d bytes", FSDP_NAME_BYTES);
  int gradient = fsdp_graph_value(graph, param ? FSDP_VALUE_PARAM_GRADIENT : FSDP_VALUE_GRADIENT,
                                  param ? FSDP_VALUE_REDUCE : of.dtype, of.module, name, of.dims, of.shape);
  graph->values[gradient].param = of.param;
  memcpy(graph->values[gradient].local, of.local, sizeof of.local);
  graph->values[gradient].local_numel = of.local_numel;
  graph->values[value].gradient = gradient;
  return gradient;
}

void fsdp_backward_in_place(fsdp_graph *graph, fsdp_node *node, int value) {
  FSDP_CHECK(graph->values[value].gradient < 0, "'%s' has a gradient already", graph->values[value].name);
  graph->values[value].gradient = value;
  fsdp_node_operand_add(node, value, FSDP_UPDATE);
}

void fsdp_backward_output(fsdp_graph *graph, fsdp_node *node, int value) {
  fsdp_access access;
  int gradient = fsdp_backward_gradient_made(graph, value, &access);
  fsdp_node_operand_add(node, gradient, access);
}

void fsdp_graph_backward(fsdp_graph *graph) {
  FSDP_CHECK(graph->backward_count == 0, "the graph already has a backward");
  for (int i = graph->forward_count - 1; i >= 0; i--) {
    const fsdp_node *node = &graph->forward[i];
    fsdp_op_backward_rule *rule = fsdp_op_row_of(node->kind)->backward;
    FSDP_CHECK(rule, "op %s has no backward rule", fsdp_op_name(node->kind));
    rule(graph, node);
  }
  for (int p = 0; p < graph->param_count; p++)
    FSDP_CHECK(graph->values[graph->params[p].value].gradient >= 0, "no op uses parameter %s",
               graph->params[p].name);
}
