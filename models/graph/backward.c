// The backward of a graph, from one rule an op: walk the forward from its end and let each op's rule append
// nodes.
//
// A value's gradient is one buffer. The residual stream's gradient is a single value for the whole backward:
// both inputs of `h = x + delta` have h's gradient, so the rule of ADD_RMSNORM lets all three share it, and
// every norm adds its own part to it in place. That is safe because nodes run in order: what reads the
// gradient of `delta` comes before the next update.
#include "models/graph/graph.h"

#include "runtime/base/check.h"

#include <stdio.h>
#include <string.h>

// The gradient value of `value`, made on first use; *access tells whether to write or to add to it.
static int gradient_of(fsdp_graph *graph, int value, fsdp_access *access) {
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
  graph->values[value].gradient = gradient;
  return gradient;
}

// The gradient that a later op has already written.
static int gradient_known(const fsdp_graph *graph, int value) {
  FSDP_CHECK(graph->values[value].gradient >= 0, "no gradient reached '%s'", graph->values[value].name);
  return graph->values[value].gradient;
}

static fsdp_node *begin(fsdp_graph *graph, fsdp_op_kind kind, const fsdp_node *forward) {
  fsdp_node *node = fsdp_graph_backward_node(graph, kind, forward->module, forward->block);
  node->attrs = forward->attrs;
  return node;
}

// Adds the gradient of `value` as an output of `node`.
static void output_gradient(fsdp_graph *graph, fsdp_node *node, int value) {
  fsdp_access access = FSDP_UPDATE;
  int gradient = gradient_of(graph, value, &access);
  fsdp_node_operand_add(node, gradient, access);
}

static void embedding_rule(fsdp_graph *graph, const fsdp_node *f) {
  fsdp_node *n = begin(graph, FSDP_OP_EMBEDDING_BACKWARD, f);
  fsdp_node_operand_add(n, f->operands[0].value, FSDP_READ);
  fsdp_node_operand_add(n, gradient_known(graph, f->operands[2].value), FSDP_READ);
  output_gradient(graph, n, f->operands[1].value);
}

// h, weight, y and rstd of either norm; `h` is what the norm was taken of.
static void norm_nodes(fsdp_graph *graph, const fsdp_node *f, int h, int weight, int y, int rstd) {
  fsdp_node *n = begin(graph, FSDP_OP_RMSNORM_BACKWARD, f);
  fsdp_node_operand_add(n, h, FSDP_READ);
  fsdp_node_operand_add(n, rstd, FSDP_READ);
  fsdp_node_operand_add(n, weight, FSDP_READ);
  fsdp_node_operand_add(n, gradient_known(graph, y), FSDP_READ);
  output_gradient(graph, n, h);
  output_gradient(graph, n, weight);
}

static void rmsnorm_rule(fsdp_graph *graph, const fsdp_node *f) {
  const fsdp_node_operand *o = f->operands;
  norm_nodes(graph, f, o[0].value, o[1].value, o[2].value, o[3].value);
}

static void add_rmsnorm_rule(fsdp_graph *graph, const fsdp_node *f) {
  const fsdp_node_operand *o = f->operands;
  int x = o[0].value, delta = o[1].value, h = o[3].value;
  norm_nodes(graph, f, h, o[2].value, o[4].value, o[5].value);
  graph->values[x].gradient = graph->values[delta].gradient = gradient_known(graph, h);
}

static void linear_rule(fsdp_graph *graph, const fsdp_node *f) {
  int x = f->operands[0].value, d_y = gradient_known(graph, f->operands[1].value);
  fsdp_node *n = begin(graph, FSDP_OP_LINEAR_BACKWARD_INPUT, f);
  n->weight_count = f->weight_count;
  memcpy(n->weights, f->weights, sizeof n->weights);
  fsdp_node_operand_add(n, d_y, FSDP_READ);
  output_gradient(graph, n, x);

  n = begin(graph, FSDP_OP_LINEAR_BACKWARD_WEIGHT, f);
  fsdp_node_operand_add(n, d_y, FSDP_READ);
  fsdp_node_operand_add(n, x, FSDP_READ);
  for (int i = 0; i < f->weight_count; i++) {
    fsdp_access access = FSDP_UPDATE;
    n->weights[n->weight_count++] = gradient_of(graph, f->weights[i], &access);
    FSDP_CHECK(access == FSDP_WRITE, "a linear weight with two uses needs a rule of its own");
  }
}

static void rope_rule(fsdp_graph *graph, const fsdp_node *f) {
  int qkv = f->operands[0].value;
  fsdp_node_operand_add(begin(graph, FSDP_OP_ROPE_BACKWARD, f), gradient_known(graph, qkv), FSDP_UPDATE);
}

static void attention_rule(fsdp_graph *graph, const fsdp_node *f) {
  int qkv = f->operands[0].value, o = f->operands[1].value, lse = f->operands[2].value;
  fsdp_node *n = begin(graph, FSDP_OP_ATTENTION_BACKWARD, f);
  fsdp_node_operand_add(n, qkv, FSDP_READ);
  fsdp_node_operand_add(n, o, FSDP_READ);
  fsdp_node_operand_add(n, lse, FSDP_READ);
  fsdp_node_operand_add(n, gradient_known(graph, o), FSDP_READ);
  output_gradient(graph, n, qkv);
}

static void swiglu_rule(fsdp_graph *graph, const fsdp_node *f) {
  int gate_up = f->operands[0].value, s = f->operands[1].value;
  fsdp_node *n = begin(graph, FSDP_OP_SWIGLU_BACKWARD, f);
  fsdp_node_operand_add(n, gate_up, FSDP_READ);
  fsdp_node_operand_add(n, gradient_known(graph, s), FSDP_READ);
  output_gradient(graph, n, gate_up);
}

static void cross_entropy_rule(fsdp_graph *graph, const fsdp_node *f) {
  fsdp_node *n = begin(graph, FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD, f);
  for (int i = 0; i < 4; i++) fsdp_node_operand_add(n, f->operands[i].value, FSDP_READ);
  fsdp_node_operand_add(n, f->operands[4].value, FSDP_WRITE);
  output_gradient(graph, n, f->operands[0].value);
  output_gradient(graph, n, f->operands[1].value);
}

typedef void (*backward_rule)(fsdp_graph *graph, const fsdp_node *forward);

static const backward_rule rules[FSDP_OP_KIND_COUNT] = {
    [FSDP_OP_EMBEDDING] = embedding_rule,
    [FSDP_OP_RMSNORM] = rmsnorm_rule,
    [FSDP_OP_ADD_RMSNORM] = add_rmsnorm_rule,
    [FSDP_OP_LINEAR] = linear_rule,
    [FSDP_OP_ROPE] = rope_rule,
    [FSDP_OP_ATTENTION] = attention_rule,
    [FSDP_OP_SWIGLU] = swiglu_rule,
    [FSDP_OP_LINEAR_CROSS_ENTROPY] = cross_entropy_rule,
};

void fsdp_graph_backward(fsdp_graph *graph) {
  FSDP_CHECK(graph->backward_count == 0, "the backward was emitted before");
  for (int i = graph->forward_count - 1; i >= 0; i--) {
    const fsdp_node *node = &graph->forward[i];
    FSDP_CHECK(rules[node->kind], "op %s has no backward rule", fsdp_op_name(node->kind));
    rules[node->kind](graph, node);
  }
  for (int p = 0; p < graph->param_count; p++)
    FSDP_CHECK(graph->values[graph->params[p].value].gradient >= 0, "no op uses parameter %s",
               graph->params[p].name);
}
