#include "runtime/plan/program/saving_cost.h"

#include "runtime/base/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct survey {
  const fsdp_graph *graph;
  const fsdp_fate *fates;
  fsdp_dtype param_dtype;
  double flops_per_byte;
  int layer;                       // -1: all
  int *first_writer, *last_writer; // by value: forward nodes, or -1
  bool *remade;                    // by value
  fsdp_repeated_work work;
} survey;

static bool is_saved(const survey *s, int value) {
  return s->fates[value] == FSDP_FATE_KEEP || s->fates[value] == FSDP_FATE_OFFLOAD;
}

// Whether a layer's forward makes the value and its backward does not find it.
static bool is_dropped(const survey *s, int value) {
  return s->graph->values[value].role == FSDP_VALUE_ACTIVATION && !is_saved(s, value) &&
         s->first_writer[value] >= 0 && s->graph->forward[s->first_writer[value]].block >= 0;
}

// What is done of the node: all of it, or what remains if an output was saved. Linear ones are always done
// whole.
static fsdp_op_remainder repeated_part(const survey *s, const fsdp_node *node) {
  bool saved[FSDP_OP_MAX_OPERANDS] = {false};
  for (int o = 0; o < node->operand_count; o++)
    saved[o] = node->operands[o].access == FSDP_WRITE && is_saved(s, node->operands[o].value);
  fsdp_op_remainder part;
  if (fsdp_op_remainder_of(node->kind, saved, &part)) return part;
  part = (fsdp_op_remainder){.kind = node->kind, .operand_count = node->operand_count};
  for (int o = 0; o < node->operand_count; o++) part.operands[o] = o;
  return part;
}

static fsdp_op_work work_of(const survey *s, const fsdp_node *node, const fsdp_op_remainder *part) {
  const fsdp_graph *g = s->graph;
  fsdp_op_extent extents[FSDP_OP_MAX_OPERANDS];
  for (int i = 0; i < part->operand_count; i++) {
    const fsdp_node_operand *operand = &node->operands[part->operands[i]];
    extents[i] = (fsdp_op_extent){.access = is_saved(s, operand->value) ? FSDP_READ : operand->access,
                                  .dtype = fsdp_graph_dtype(g, operand->value, s->param_dtype),
                                  .bytes = fsdp_graph_bytes(g, operand->value, s->param_dtype)};
  }
  if (!node->weight_count) return fsdp_op_work_of(part->kind, &node->attrs, extents, part->operand_count);
  fsdp_op_work work = {0};
  fsdp_op_attrs attrs = node->attrs;
  for (int i = 0; i < part->operand_count; i++) work.bytes += (double)extents[i].bytes;
  for (int w = 0; w < node->weight_count; w++) {
    attrs.out_features = fsdp_graph_outputs(g, node->weights[w]);
    attrs.in_features = fsdp_graph_inputs(g, node->weights[w]);
    work.flops += fsdp_op_flops(part->kind, &attrs);
    work.bytes += (double)fsdp_graph_bytes(g, node->weights[w], s->param_dtype);
  }
  for (int b = 0; b < node->bias_count; b++)
    work.bytes += (double)fsdp_graph_bytes(g, node->biases[b], s->param_dtype);
  return work;
}

// Makes a value again: counts the nodes that wrote it, and what these read and do not find, once.
static void remake(survey *s, int value) {
  if (s->remade[value]) return;
  s->remade[value] = true;
  for (int n = s->first_writer[value]; n <= s->last_writer[value]; n++) {
    const fsdp_node *node = &s->graph->forward[n];
    bool writes = false;
    for (int o = 0; o < node->operand_count; o++)
      writes = writes || (node->operands[o].value == value && node->operands[o].access != FSDP_READ);
    if (!writes) continue;
    fsdp_op_remainder part = repeated_part(s, node);
    for (int i = 0; i < part.operand_count; i++) {
      const fsdp_node_operand *operand = &node->operands[part.operands[i]];
      if (operand->access == FSDP_WRITE) s->remade[operand->value] = true;
      if (operand->access == FSDP_READ && is_dropped(s, operand->value)) remake(s, operand->value);
    }
    if (s->layer >= 0 && node->block != s->layer) continue;
    fsdp_op_work work = work_of(s, node, &part);
    s->work.flops += work.flops;
    s->work.bytes += work.bytes;
    s->work.time += fmax(work.bytes, work.flops / s->flops_per_byte);
  }
}

static survey survey_of(const fsdp_graph *graph, const fsdp_fate *fates, int layer, fsdp_dtype param_dtype,
                        double flops_per_byte) {
  size_t count = (size_t)graph->value_count;
  survey s = {.graph = graph,
              .fates = fates,
              .param_dtype = param_dtype,
              .flops_per_byte = flops_per_byte,
              .layer = layer,
              .first_writer = fsdp_alloc(count * sizeof(int)),
              .last_writer = fsdp_alloc(count * sizeof(int)),
              .remade = fsdp_alloc_zeroed(count, sizeof(bool))};
  for (size_t v = 0; v < count; v++) s.first_writer[v] = s.last_writer[v] = -1;
  for (int n = 0; n < graph->forward_count; n++)
    for (int o = 0; o < graph->forward[n].operand_count; o++) {
      const fsdp_node_operand *operand = &graph->forward[n].operands[o];
      if (operand->access == FSDP_READ) continue;
      if (s.first_writer[operand->value] < 0) s.first_writer[operand->value] = n;
      s.last_writer[operand->value] = n;
    }
  return s;
}

fsdp_repeated_work fsdp_saving_repeated_work(const fsdp_graph *graph, const fsdp_fate *fates, int layer,
                                             fsdp_dtype param_dtype, double flops_per_byte) {
  survey s = survey_of(graph, fates, layer, param_dtype, flops_per_byte);
  for (int n = 0; n < graph->backward_count; n++)
    for (int o = 0; o < graph->backward[n].operand_count; o++)
      if (is_dropped(&s, graph->backward[n].operands[o].value))
        remake(&s, graph->backward[n].operands[o].value);
  free(s.first_writer), free(s.last_writer), free(s.remade);
  return s.work;
}

int64_t fsdp_saving_bytes(const fsdp_graph *graph, const fsdp_saved *saved, const fsdp_fate *fates,
                          fsdp_fate fate, int layer, fsdp_dtype param_dtype) {
  int64_t bytes = 0;
  for (int i = 0; i < saved->count; i++) {
    const fsdp_saved_value *value = &saved->values[i];
    if (fates[value->value] != fate || (layer >= 0 && value->layer != layer)) continue;
    bytes += fsdp_graph_bytes(graph, value->value, param_dtype);
  }
  return bytes;
}

double fsdp_saving_remake_time(const fsdp_graph *graph, const fsdp_saved *saved, int index,
                               const fsdp_fate *fates, fsdp_dtype param_dtype, double flops_per_byte) {
  const fsdp_saved_value *asked = &saved->values[index];
  if (asked->is_made_once) return INFINITY;
  size_t bytes = (size_t)graph->value_count * sizeof *fates;
  fsdp_fate *changed = fsdp_alloc(bytes);
  memcpy(changed, fates, bytes);
  const bool is_sum = strcmp(asked->name, "residual") == 0; // with which its norm is made again
  for (int i = 0; i < saved->count; i++) {
    const fsdp_saved_value *value = &saved->values[i];
    if (value->maker == asked->maker && (is_sum || strcmp(value->name, asked->name) == 0) &&
        fates[value->value] == FSDP_FATE_OFFLOAD)
      changed[value->value] = FSDP_FATE_RECOMPUTE;
  }
  double before = fsdp_saving_repeated_work(graph, fates, asked->layer, param_dtype, flops_per_byte).time;
  double after = fsdp_saving_repeated_work(graph, changed, asked->layer, param_dtype, flops_per_byte).time;
  free(changed);
  return after - before;
}
