#include "runtime/plan/program/saved.h"

#include "runtime/base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The op of which a fused op's other outputs remain if operand `sum` was kept; NULL: it is no sum.
static const char *remainder_name(const fsdp_node *node, int sum) {
  bool kept[FSDP_OP_MAX_OPERANDS] = {false};
  kept[sum] = true;
  fsdp_op_remainder left;
  return fsdp_op_remainder_of(node->kind, kept, &left) ? fsdp_op_name(left.kind) : NULL;
}

static const char *name_of(const fsdp_node *node, int operand) {
  if (fsdp_node_adds_residual(node)) return "residual";
  if (fsdp_node_redistributes(node)) return node->conversion.to == FSDP_SPREAD_WHOLE ? "gather" : "residual";
  for (int o = 0; o < node->operand_count; o++) {
    if (node->operands[o].access != FSDP_WRITE) continue;
    const char *rest = remainder_name(node, o);
    if (rest) return o == operand ? "residual" : rest;
  }
  return fsdp_op_family(node->kind);
}

// The layer of the first node of `nodes` that reads the value, -1: none of a layer does. What changes it, as
// the dropout of the layer before, still makes it.
static int first_reader(const fsdp_node *nodes, int count, int value) {
  for (int n = 0; n < count; n++)
    for (int o = 0; o < nodes[n].operand_count; o++)
      if (nodes[n].operands[o].value == value && nodes[n].operands[o].access == FSDP_READ &&
          nodes[n].block >= 0)
        return nodes[n].block;
  return -1;
}

// By value: whether a backward node reads it.
static bool *read_by_backward(const fsdp_graph *graph) {
  bool *read = fsdp_alloc_zeroed((size_t)graph->value_count, sizeof *read);
  for (int n = 0; n < graph->backward_count; n++)
    for (int o = 0; o < graph->backward[n].operand_count; o++)
      if (graph->backward[n].operands[o].access & FSDP_READ)
        read[graph->backward[n].operands[o].value] = true;
  // What is gathered again for it is read then.
  for (int n = graph->forward_count - 1; n >= 0; n--) {
    const fsdp_node *node = &graph->forward[n];
    if (!fsdp_node_redistributes(node) || node->operand_count < 2) continue;
    int source = node->operands[0].value, made = node->operands[1].value;
    if (read[made] && graph->values[made].regathered) read[source] = true;
  }
  return read;
}

// Whether node `n` makes a choice, or gathers that of other ranks.
static bool is_choice(const fsdp_graph *graph, int n) {
  const fsdp_node *node = &graph->forward[n];
  if (!fsdp_node_redistributes(node)) return fsdp_op_has(node->kind, FSDP_TRAIT_CHOOSES);
  for (int m = 0; m < n; m++)
    for (int o = 0; o < graph->forward[m].operand_count; o++)
      if (graph->forward[m].operands[o].value == node->operands[0].value &&
          graph->forward[m].operands[o].access == FSDP_WRITE)
        return is_choice(graph, m);
  return false;
}

fsdp_saved fsdp_saved_create(const fsdp_graph *graph) {
  fsdp_saved saved = {.values = fsdp_alloc((size_t)graph->value_count * sizeof *saved.values)};
  bool *wanted = read_by_backward(graph);
  for (int n = 0; n < graph->forward_count; n++) {
    const fsdp_node *node = &graph->forward[n];
    for (int o = 0; o < node->operand_count; o++) {
      int v = node->operands[o].value;
      const fsdp_value *value = &graph->values[v];
      if (node->operands[o].access != FSDP_WRITE || !wanted[v] || value->role != FSDP_VALUE_ACTIVATION)
        continue;
      // A sum that a gemm makes is of the layer whose norm reads it next.
      const int maker = n + fsdp_node_adds_residual(node);
      int layer = graph->forward[maker].block;
      // The embedding, or the layer before (a sum stored in columns), makes what enters a layer.
      if (value->kept) layer = first_reader(graph->forward + n, graph->forward_count - n, v);
      if (layer < 0) continue;
      saved.values[saved.count++] = (fsdp_saved_value){.value = v,
                                                       .layer = layer,
                                                       .maker = maker,
                                                       .is_layer_input = value->kept,
                                                       .is_made_once = value->kept || is_choice(graph, n),
                                                       .name = value->kept ? "residual" : name_of(node, o)};
    }
  }
  free(wanted);
  return saved;
}

void fsdp_saved_release(fsdp_saved *saved) {
  free(saved->values);
  *saved = (fsdp_saved){0};
}

bool fsdp_saved_is_of(const fsdp_graph *graph, const fsdp_saved_value *saved, const char *module) {
  const fsdp_node *node = &graph->forward[saved->maker];
  if (strcmp(graph->modules[node->module].name, module) == 0) return true;
  for (int w = 0; w < node->weight_count; w++) {
    int owner = graph->params[graph->values[node->weights[w]].param].module;
    if (strcmp(graph->modules[owner].name, module) == 0) return true;
  }
  return false;
}

const char *fsdp_saved_name(const fsdp_graph *graph, const fsdp_saved_value *saved,
                            char out[FSDP_SAVED_NAME_BYTES]) {
  const char *module = graph->modules[graph->forward[saved->maker].module].name;
  snprintf(out, FSDP_SAVED_NAME_BYTES, saved->is_layer_input ? "block_inputs" : "%.20s:%.40s", saved->name,
           module);
  return out;
}
