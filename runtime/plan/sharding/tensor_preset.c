#include "runtime/plan/sharding/tensor_preset.h"

#include "runtime/base/check.h"
#include "runtime/plan/sharding/dataflow.h"

#include <stdlib.h>
#include <string.h>

typedef struct preset {
  fsdp_specs *specs;
  const fsdp_graph *graph;
  const fsdp_mesh *mesh;
  bool *cut; // by value: its columns lie over tensor
} preset;

static void mark(fsdp_spec *spec) {
  spec->source = FSDP_SPEC_PRESET;
  snprintf(spec->place, sizeof spec->place, "--sharding fsdp-tp");
}

static char letter_of(const fsdp_op_dim *dim) {
  return dim->blocks[0].letters[0];
}

// ---- Which columns are cut

// The value that a node is there for: what it makes (or changes) with rows and columns; -1: none.
static int main_output(const fsdp_graph *graph, const fsdp_node *node) {
  int found = -1;
  for (int o = 0; o < node->operand_count && found < 0; o++) {
    const fsdp_node_operand *operand = &node->operands[o];
    if ((operand->access & FSDP_WRITE) && graph->values[operand->value].dims == 2) found = operand->value;
  }
  return found;
}

// Whether an op needs a value's columns whole: the router those of logits, and a norm those of heads that are
// normalised together.
static bool is_read_whole(const fsdp_graph *graph, int value) {
  for (const fsdp_node *n = graph->forward; n < graph->forward + graph->forward_count; n++) {
    const fsdp_op_letters *op = fsdp_op_letters_of(n->kind);
    for (int o = 0; o < n->operand_count && !n->weight_count; o++) {
      const fsdp_op_operand *operand = &op->operands[o];
      if (n->operands[o].value != value || operand->dim_count < 2) continue;
      const fsdp_op_letter *letter = fsdp_op_letter_find(op, letter_of(&operand->dims[1]));
      if (!letter || letter->is_whole || fsdp_node_joins(graph, n, letter->name)) return true;
    }
  }
  return false;
}

// Whether an op works on columns that are cut: its input's, or, of a letter of its own weight, that weight's.
static bool works_on_cut(const preset *p, const fsdp_node *node, char letter) {
  const fsdp_op_letters *op = fsdp_op_letters_of(node->kind);
  for (int o = 0; o < node->operand_count; o++) {
    const bool is_weight = p->graph->values[node->operands[o].value].role == FSDP_VALUE_PARAM;
    if (!(node->operands[o].access & FSDP_READ)) continue;
    if (is_weight ? fsdp_op_operand_has(&op->operands[o], letter) : p->cut[node->operands[o].value])
      return true;
  }
  return false;
}

// Channels are whole; heads and the intermediate size are cut. A linear layer makes one of the other.
static void find_cut(preset *p, const fsdp_node *node) {
  const fsdp_op_letters *op = fsdp_op_letters_of(node->kind);
  if (node->weight_count) {
    const int made = main_output(p->graph, node);
    p->cut[made] = !p->cut[node->operands[0].value] && !is_read_whole(p->graph, made);
    return;
  }
  for (int o = 0; o < node->operand_count; o++) {
    const fsdp_op_operand *operand = &op->operands[o];
    if (operand->dim_count < 2 || !(operand->access & FSDP_WRITE)) continue;
    const fsdp_op_letter *letter = fsdp_op_letter_find(op, letter_of(&operand->dims[1]));
    p->cut[node->operands[o].value] =
        letter && letter->name != 'c' && !letter->is_whole && works_on_cut(p, node, letter->name);
  }
}

// ---- Parameters

// Cuts dimension `dim` over tensor; the other axes cut another dimension, if there is one.
static void cut_param(const preset *p, int value, int dim) {
  int param = p->graph->values[value].param;
  fsdp_spec *spec = &p->specs->params[param];
  const fsdp_dim_axes others = spec->dim[0];
  if (fsdp_spec_axes(spec, p->mesh) & fsdp_mesh_axes(p->mesh, FSDP_AXIS_TENSOR)) return; // tied
  memset(spec->dim, 0, sizeof spec->dim);
  fsdp_dim_axes_add(&spec->dim[dim], p->mesh, FSDP_AXIS_TENSOR);
  fsdp_dim_axes *rest = &spec->dim[spec->dims > 1 ? !dim : 0];
  for (int i = 0; i < others.count; i++) rest->axes[rest->count++] = others.axes[i];
}

static void cut_linear(const preset *p, const fsdp_node *node) {
  bool is_row = p->cut[node->operands[0].value];
  if (!is_row && !p->cut[main_output(p->graph, node)]) return;
  for (int w = 0; w < node->weight_count; w++) {
    const fsdp_value *weight = &p->graph->values[node->weights[w]];
    int outputs = p->graph->params[weight->param].transposed;
    cut_param(p, node->weights[w], is_row ? !outputs : outputs);
  }
  for (int b = 0; b < node->bias_count && !is_row; b++) cut_param(p, node->biases[b], 0);
}

// The vocabulary, and experts inside, in their intermediate size.
static void cut_own(const preset *p, const fsdp_node *node) {
  const fsdp_op_letters *op = fsdp_op_letters_of(node->kind);
  for (int o = 0; o < node->operand_count; o++)
    for (int d = 0; d < op->operands[o].dim_count; d++)
      if (p->graph->values[node->operands[o].value].role == FSDP_VALUE_PARAM &&
          strchr("vf", letter_of(&op->operands[o].dims[d])))
        cut_param(p, node->operands[o].value, d);
}

// ---- Outputs

static void place_outputs(const preset *p, bool sequence_parallel) {
  int *maker = fsdp_alloc((size_t)p->graph->module_count * sizeof *maker);
  fsdp_specs_find_makers(p->graph, maker);
  for (int m = 0; m < p->graph->module_count; m++) {
    fsdp_spec *spec = p->specs->outputs[m];
    if (maker[m] < 0 || spec->dims != FSDP_OUTPUT_DIMS) continue;
    int made = main_output(p->graph, &p->graph->forward[maker[m]]);
    bool is_cut = made < 0 || p->cut[made]; // the head's output are logits, which it makes none of
    mark(spec);
    if (fsdp_spec_axes(spec, p->mesh) & fsdp_mesh_axes(p->mesh, FSDP_AXIS_TENSOR)) continue; // of the batch
    if (is_cut || sequence_parallel) fsdp_dim_axes_add(&spec->dim[is_cut ? 2 : 1], p->mesh, FSDP_AXIS_TENSOR);
  }
  free(maker);
}

void fsdp_tensor_preset(fsdp_specs *specs, const fsdp_graph *graph, const fsdp_mesh *mesh,
                        bool sequence_parallel) {
  preset p = {.specs = specs, .graph = graph, .mesh = mesh};
  if (fsdp_mesh_size(mesh, FSDP_AXIS_TENSOR) == 1) return;
  p.cut = fsdp_alloc_zeroed((size_t)graph->value_count, sizeof *p.cut);
  for (int n = 0; n < graph->forward_count; n++) find_cut(&p, &graph->forward[n]);
  for (int n = 0; n < graph->forward_count; n++)
    (graph->forward[n].weight_count ? cut_linear : cut_own)(&p, &graph->forward[n]);
  for (int i = 0; i < graph->param_count; i++) mark(&specs->params[i]);
  place_outputs(&p, sequence_parallel);
  free(p.cut);
}
