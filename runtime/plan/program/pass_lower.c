// The graph's nodes as list nodes: each value that is written gets a tensor, weights and their gradients stay
// ranges of their units, and a linear node with several weights becomes one gemm per weight (or, of biases
// alone, one sum per bias).
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/program/lower.h"

#include <stdlib.h>

// The op once per slice: of each weight, each bias, or both together. They take their places among the
// operands.
static void lower_slices(lowering *l, const fsdp_node *node) {
  const fsdp_graph *graph = l->s->graph;
  const fsdp_op_letters *op = fsdp_op_letters_of(node->kind);
  int weight = fsdp_op_slice_weight(op), bias = fsdp_op_slice_bias(op), output = op->operand_count - 1;
  const int *slices = node->weight_count ? node->weights : node->biases;
  int count = node->weight_count ? node->weight_count : node->bias_count, taken = 0;
  fsdp_operand operands[FSDP_OP_MAX_OPERANDS];
  for (int row = 0; row < op->operand_count; row++)
    if (row != weight && row != bias) operands[row] = lower_operand(l, &node->operands[taken++]);
  fsdp_op_attrs attrs = node->attrs;
  for (int i = 0; i < count; i++) attrs.out_stride += fsdp_graph_outputs(graph, slices[i]);
  for (int i = 0; i < count; i++) {
    attrs.out_features = fsdp_graph_outputs(graph, slices[i]);
    const fsdp_value *slice = &graph->values[slices[i]];
    if (slice->role == FSDP_VALUE_PARAM_GRADIENT && !graph->params[slice->param].trainable) {
      attrs.out_offset += attrs.out_features;
      continue;
    }
    if (weight >= 0) {
      const fsdp_value *v = &graph->values[node->weights[i]];
      operands[weight] = lower_parameter(l->s, v, FSDP_WRITE);
      attrs.in_features = fsdp_graph_inputs(graph, node->weights[i]);
      attrs.weight_transposed = graph->params[v->param].transposed;
    }
    if (bias >= 0) operands[bias] = lower_parameter(l->s, &graph->values[node->biases[i]], FSDP_WRITE);
    lower_op(l, node, &attrs, operands, op->operand_count);
    attrs.out_offset += attrs.out_features;
    // An output that sums over the slices' columns: the next gemm adds to it.
    if (weight >= 0 && fsdp_op_contracts(op, output, op->operands[weight].dims[0].blocks[0].letters[0]))
      operands[output].access = FSDP_UPDATE;
  }
}

// Returns whether it does the work of `next` too (NULL: there is none).
static bool lower_plain(lowering *l, const fsdp_node *node, const fsdp_node *next) {
  fsdp_operand operands[FSDP_OP_MAX_OPERANDS];
  for (int i = 0; i < node->operand_count; i++) operands[i] = lower_operand(l, &node->operands[i]);
  fsdp_op_attrs attrs = node->attrs;
  if (attrs.held_experts) { // a block's offsets
    fsdp_operand *offsets = &operands[fsdp_op_offsets_operand(node->kind)];
    offsets->offset.base += 4 * attrs.first_expert;
    offsets->size_bytes = 4 * (attrs.experts + 1);
  }
  fsdp_dtype dtypes[FSDP_OP_MAX_OPERANDS] = {0};
  for (int i = 0; i < node->operand_count; i++) dtypes[i] = operands[i].dtype;
  fsdp_op_complete_attrs(l->s->config->backend->device, &l->s->config->gpu, node->kind, &attrs, dtypes);
  if (fsdp_node_rotates(node, &attrs, next)) {
    attrs.rotates_back = true;
    attrs.inv_freq = next->attrs.inv_freq;
  }
  // Graphs say that the rest of the rows stays; of its columns an op that writes some keeps nothing.
  const fsdp_op_letters *op = fsdp_op_letters_of(node->kind);
  for (int i = 0; i < node->operand_count; i++)
    if (op->operands[i].may_add && op->operands[i].dims[op->operands[i].dim_count - 1].is_slice)
      operands[i].access = FSDP_WRITE;
  lower_op(l, node, &attrs, operands, node->operand_count);
  return attrs.rotates_back;
}

// The backward of one forward node has one origin: an update after its last gradient must not change a weight
// that another of its nodes still reads.
static void lower_nodes(lowering *l, const fsdp_node *nodes, int count) {
  for (int i = 0; i < count; i++) {
    l->origin += i == 0 || !l->is_backward || nodes[i].forward != nodes[i - 1].forward;
    if (nodes[i].weight_count || nodes[i].bias_count)
      lower_slices(l, &nodes[i]);
    else if (fsdp_node_redistributes(&nodes[i]))
      lower_redistribute(l, &nodes[i]);
    else if (lower_is_cut_head(&nodes[i]))
      lower_cut_head(l, &nodes[i]);
    else
      i += lower_plain(l, &nodes[i], i + 1 < count ? &nodes[i + 1] : NULL);
  }
}

void pass_lower(step_builder *s) {
  const fsdp_graph *g = s->graph;
  lowering l = {.s = s, .tensor_of_value = fsdp_alloc((size_t)g->value_count * sizeof(int))};
  for (int v = 0; v < g->value_count; v++) l.tensor_of_value[v] = -1;
  for (int i = 0; i < FSDP_INPUT_COUNT; i++)
    if (g->inputs[i] >= 0) l.tensor_of_value[g->inputs[i]] = s->inputs[i];
  l.tensor_of_value[g->count] = s->count;
  // In training the loss's backward computes the loss too, so the forward ends one node early.
  lower_nodes(&l, g->forward, s->is_training ? g->forward_count - 1 : g->forward_count);
  l.is_backward = true;
  if (s->is_training) lower_nodes(&l, g->backward, g->backward_count);
  if (!s->is_training && s->config->logits) lower_logits(&l, &g->forward[g->forward_count - 1]);
  free(l.tensor_of_value);
}
