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
  node->first_row = forward->first_row;
  node->first_head = forward->first_head;
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

// Adds `value` as an operand that `node` replaces by its gradient. The node must be the last to read it.
static void replace(fsdp_graph *graph, fsdp_node *node, int value) {
  FSDP_CHECK(graph->values[value].gradient < 0, "'%s' has a gradient already", graph->values[value].name);
  graph->values[value].gradient = value;
  fsdp_node_operand_add(node, value, FSDP_UPDATE);
}

// A place for the gradient that an op writes beside another one, and nothing reads.
static int add_unread(fsdp_graph *graph, int value) {
  fsdp_value of = graph->values[value];
  int unread = fsdp_graph_value(graph, FSDP_VALUE_GRADIENT, of.param < 0 ? of.dtype : FSDP_VALUE_F32,
                                of.module, "unread", of.dims, of.shape);
  fsdp_value *made = &graph->values[unread];
  memcpy(made->local, of.local, sizeof of.local);
  made->local_numel = of.local_numel;
  made->unread = true;
  return unread;
}

void fsdp_backward_output(fsdp_graph *graph, fsdp_node *node, int value) {
  fsdp_access access = FSDP_WRITE;
  int gradient = graph->values[value].needs_gradient ? fsdp_backward_gradient_made(graph, value, &access)
                                                     : add_unread(graph, value);
  fsdp_node_operand_add(node, gradient, access);
}

void fsdp_backward_output_as(fsdp_graph *graph, fsdp_node *node, int value, fsdp_value_dtype dtype) {
  const fsdp_value_dtype own = graph->values[value].dtype;
  graph->values[value].dtype = dtype;
  fsdp_backward_output(graph, node, value);
  graph->values[value].dtype = own;
}

// The value of the operand that `forward` has under this name.
static int named(const fsdp_node *forward, const char *name) {
  const fsdp_op_letters *op = fsdp_op_letters_of(forward->kind);
  for (int i = 0; i < forward->operand_count; i++)
    if (strcmp(fsdp_op_operand_row(op, &forward->attrs, i)->name, name) == 0)
      return forward->operands[i].value;
  FSDP_CHECK(false, "%s has no operand %s", fsdp_op_name(forward->kind), name);
}

static void add_gradient(fsdp_graph *graph, fsdp_node *node, int value, const fsdp_op_operand *row) {
  const fsdp_value_dtype own = graph->values[value].dtype;
  const bool computes = !row->has_dtype && own == FSDP_VALUE_F32;
  fsdp_backward_output_as(graph, node, value, computes ? FSDP_VALUE_COMPUTE : own);
}

void fsdp_backward_by_names(fsdp_graph *graph, fsdp_op_kind kind, const fsdp_node *forward) {
  const fsdp_op_letters *op = fsdp_op_letters_of(kind);
  const int count = fsdp_op_operand_count(op, &forward->attrs);
  fsdp_node *n = fsdp_backward_node(graph, kind, forward);
  for (int i = 0; i < count; i++) {
    const fsdp_op_operand *row = fsdp_op_operand_row(op, &forward->attrs, i);
    const bool is_gradient = strncmp(row->name, "d_", 2) == 0;
    const int value = named(forward, row->name + (is_gradient ? 2 : 0));
    if (is_gradient && row->access == FSDP_WRITE)
      add_gradient(graph, n, value, row);
    else if (is_gradient)
      fsdp_node_operand_add(n, fsdp_backward_gradient(graph, value), row->access);
    else if (row->access == FSDP_UPDATE)
      replace(graph, n, value);
    else
      fsdp_node_operand_add(n, value, FSDP_READ);
  }
}

// ---- Who needs a gradient

static bool reads_needed(const fsdp_graph *graph, const fsdp_node *node) {
  bool needed = false;
  for (int o = 0; o < node->operand_count; o++)
    needed |= (node->operands[o].access & FSDP_READ) && graph->values[node->operands[o].value].needs_gradient;
  for (int w = 0; w < node->weight_count; w++) needed |= graph->values[node->weights[w]].needs_gradient;
  for (int b = 0; b < node->bias_count; b++) needed |= graph->values[node->biases[b]].needs_gradient;
  return needed;
}

static void find_needed(fsdp_graph *graph) {
  for (int p = 0; p < graph->param_count; p++)
    graph->values[graph->params[p].value].needs_gradient = graph->params[p].trainable;
  for (int i = 0; i < graph->forward_count; i++) {
    const fsdp_node *node = &graph->forward[i];
    for (int o = 0; o < node->operand_count && reads_needed(graph, node); o++)
      if (node->operands[o].access & FSDP_WRITE) graph->values[node->operands[o].value].needs_gradient = true;
  }
}

// Of the values of parameters' gradients.
static bool any_trains(const fsdp_graph *graph, const int *gradients, int count) {
  bool any = false;
  for (int i = 0; i < count; i++) {
    const fsdp_value *value = &graph->values[gradients[i]];
    any |= value->role == FSDP_VALUE_PARAM_GRADIENT && graph->params[value->param].trainable;
  }
  return any;
}

// Whether a backward node writes anything that is needed.
static bool is_needed(const fsdp_graph *graph, const fsdp_node *node) {
  bool needed = any_trains(graph, node->weights, node->weight_count) ||
                any_trains(graph, node->biases, node->bias_count);
  for (int o = 0; o < node->operand_count; o++)
    needed |= (node->operands[o].access & FSDP_WRITE) && !graph->values[node->operands[o].value].unread;
  return needed;
}

void fsdp_graph_backward(fsdp_graph *graph) {
  FSDP_CHECK(graph->backward_count == 0, "the graph already has a backward");
  find_needed(graph);
  for (int i = graph->forward_count - 1; i >= 0; i--) {
    const fsdp_node *node = &graph->forward[i];
    if (!reads_needed(graph, node)) continue;
    int kept = graph->backward_count;
    const fsdp_op_row *row = fsdp_op_row_of(node->kind);
    FSDP_CHECK(row->backward || row->backward_by, "op %s has no backward rule", fsdp_op_name(node->kind));
    if (row->backward)
      row->backward(graph, node);
    else
      fsdp_backward_by_names(graph, (fsdp_op_kind)(row->backward_by - 1), node);
    for (int n = kept; n < graph->backward_count; n++)
      if (is_needed(graph, &graph->backward[n])) graph->backward[kept++] = graph->backward[n];
    graph->backward_count = kept;
  }
  for (int p = 0; p < graph->param_count; p++)
    FSDP_CHECK(!graph->params[p].trainable || graph->values[graph->params[p].value].gradient >= 0,
               "no op uses parameter %s", graph->params[p].name);
}
