#include "runtime/plan/sharding/decisions.h"

#include "runtime/base/check.h"
#include "runtime/plan/sharding/seeds.h"

#include <stdlib.h>
#include <string.h>

typedef struct decider {
  const fsdp_graph *graph;
  const fsdp_specs *specs;
  const fsdp_mesh *mesh; // before it was factored, for messages
  const fsdp_factored_mesh *axes;
  fsdp_decisions *out;
  fsdp_error *error;
} decider;

// ---- Ops

fsdp_value_axes fsdp_strategy_operand(const fsdp_op_strategy *strategy, const fsdp_op_operand *operand) {
  const char letter = operand->dim_count == 2 ? operand->dims[1].blocks[0].letters[0] : 0;
  return (fsdp_value_axes){fsdp_strategy_axes(strategy, 't'),
                           letter ? fsdp_strategy_axes(strategy, letter) : 0};
}

fsdp_axis_set fsdp_strategy_partial(const fsdp_op_strategy *strategy, const fsdp_op_letters *row,
                                    int operand) {
  fsdp_axis_set axes = 0;
  for (int l = 0; l < row->letter_count; l++)
    if (fsdp_op_contracts(row, operand, row->letters[l].name))
      axes |= fsdp_strategy_axes(strategy, row->letters[l].name);
  return axes;
}

int fsdp_node_row_operand(const fsdp_node *node, int o) {
  const fsdp_op_letters *op = fsdp_op_letters_of(node->kind);
  if (!node->weight_count) return o;
  int weight = fsdp_op_slice_weight(op), bias = fsdp_op_slice_bias(op), row = 0;
  for (;; row++) {
    if (row == weight || row == bias) continue;
    if (o-- == 0) return row;
  }
}

int fsdp_node_sum_operand(const fsdp_node *node, fsdp_op_remainder *norm) {
  for (int o = 0; o < node->operand_count; o++) {
    bool kept[FSDP_OP_MAX_OPERANDS] = {false};
    kept[o] = true;
    if (node->operands[o].access == FSDP_WRITE && fsdp_op_remainder_of(node->kind, kept, norm)) return o;
  }
  FSDP_CHECK(false, "%s is no sum", fsdp_op_name(node->kind));
}

bool fsdp_node_stacks_experts(const fsdp_node *node, int operand, int dim) {
  const fsdp_op_operand *row =
      &fsdp_op_letters_of(node->kind)->operands[fsdp_node_row_operand(node, operand)];
  return dim == 0 && row->dim_count > 1 && row->dims[0].blocks[0].letters[0] == 'e';
}

// ---- Rules of outputs

fsdp_value_axes fsdp_decisions_stored(const fsdp_decisions *decisions, const fsdp_factored_mesh *axes,
                                      const fsdp_spec *rule) {
  const fsdp_axis_set input = decisions->batch | decisions->parts;
  if (!rule) return (fsdp_value_axes){0};
  return (fsdp_value_axes){fsdp_factored_axes(axes, &rule->dim[1]) & ~input,
                           fsdp_factored_axes(axes, &rule->dim[2]) & ~input};
}

// The outermost module below a layer whose output node `n` makes, -1: none. `maker`: by module.
static int output_module(const fsdp_graph *graph, const int *maker, int n) {
  int module = graph->forward[n].module;
  if (maker[module] != n) return -1;
  for (;;) {
    int parent = graph->modules[module].parent;
    if (parent <= 0 || fsdp_graph_layer_of(graph, parent) == parent || maker[parent] != n) return module;
    module = parent;
  }
}

static void find_outputs(const decider *d) {
  const fsdp_graph *g = d->graph;
  int *maker = fsdp_alloc((size_t)g->module_count * sizeof *maker);
  fsdp_specs_find_makers(g, maker);
  for (int v = 0; v < g->value_count; v++) d->out->output_of[v] = -1;
  for (int n = 0; n < g->forward_count; n++) {
    const fsdp_node *node = &g->forward[n];
    fsdp_op_remainder norm;
    int sum = fsdp_op_added(node->kind) >= 0 ? fsdp_node_sum_operand(node, &norm) : -1;
    for (int o = 0; o < node->operand_count; o++) {
      int value = node->operands[o].value;
      if (o == sum || node->operands[o].access != FSDP_WRITE || g->values[value].dims != 2) continue;
      if (g->values[value].role == FSDP_VALUE_ACTIVATION)
        d->out->output_of[value] = output_module(g, maker, n);
    }
  }
  free(maker);
}

// The rule that stores the output that a value is, NULL: none does. Without one for the outermost module, one
// inside it may have one.
static const fsdp_spec *output_rule(const decider *d, int value) {
  int module = d->out->output_of[value];
  const fsdp_spec *spec = module >= 0 ? fsdp_specs_rule(d->specs, module) : NULL;
  for (int m = d->graph->values[value].module; module >= 0 && !spec && m > module;
       m = d->graph->modules[m].parent)
    spec = fsdp_specs_rule(d->specs, m);
  return spec;
}

// Whether rules store all that a product of several weights makes alike: its own is the first weight's.
static bool ruled_alike(const decider *d, const fsdp_node *node, fsdp_value_axes axes) {
  for (int w = 1; w < node->weight_count; w++) {
    int module = d->graph->params[d->graph->values[node->weights[w]].param].module;
    fsdp_value_axes other = fsdp_decisions_stored(d->out, d->axes, fsdp_specs_rule(d->specs, module));
    if (other.rows != axes.rows || other.columns != axes.columns) return false;
  }
  return true;
}

// Whether a value has another reader than a sum: then the backward reads it.
static bool is_saved(const decider *d, int value) {
  for (const fsdp_node *n = d->graph->forward; n < d->graph->forward + d->graph->forward_count; n++)
    for (int o = 0; o < n->operand_count; o++)
      if (n->operands[o].value == value && (n->operands[o].access & FSDP_READ) && o != fsdp_op_added(n->kind))
        return true;
  return false;
}

// ---- How outputs are stored

static bool is_activation(const decider *d, int value) {
  return d->graph->values[value].role == FSDP_VALUE_ACTIVATION;
}

// The rows in which the norm takes a value that is the first to read it.
static fsdp_axis_set reader_rows(const decider *d, const fsdp_node *maker, int value) {
  for (const fsdp_node *n = maker + 1; n < d->graph->forward + d->graph->forward_count; n++)
    for (int o = 0; o < n->operand_count; o++) {
      if (n->operands[o].value != value || !fsdp_op_has(n->kind, FSDP_TRAIT_NORM)) continue;
      const fsdp_decided_op *norm = &d->out->ops[n - d->graph->forward];
      return fsdp_strategy_axes(&norm->strategy, 't') | norm->sum.rows;
    }
  return 0;
}

// An output that a rule places is stored as the rule says, unless only a sum reads it; sums always are.
// `made`: as the op makes it, `partial`: as a sum.
static void store(const decider *d, const fsdp_node *node, int value, fsdp_value_axes made, bool partial) {
  const fsdp_spec *rule = output_rule(d, value);
  const fsdp_value_axes axes = fsdp_decisions_stored(d->out, d->axes, rule);
  const bool differs = made.rows != axes.rows || made.columns != axes.columns;
  if (!rule || !ruled_alike(d, node, axes)) return;
  if (partial || (differs && is_saved(d, value))) d->out->stored[value] = (fsdp_stored_value){true, axes};
}

static void store_outputs(const decider *d, const fsdp_node *node, fsdp_decided_op *op) {
  const fsdp_op_letters *row = fsdp_op_letters_of(node->kind);
  fsdp_op_remainder norm;
  int sum = op->splits_sum ? fsdp_node_sum_operand(node, &norm) : -1;
  for (int o = 0; o < node->operand_count; o++) {
    const int value = node->operands[o].value, operand = fsdp_node_row_operand(node, o);
    if (node->operands[o].access != FSDP_WRITE || !is_activation(d, value) || o == sum) continue;
    fsdp_value_axes made = fsdp_strategy_operand(&op->strategy, &row->operands[operand]);
    if (node->bias_count && fsdp_strategy_axes(&op->strategy, 'i')) {
      op->biases_rows = reader_rows(d, node, value);
      made = (fsdp_value_axes){.rows = op->biases_rows};
    }
    store(d, node, value, made, fsdp_strategy_partial(&op->strategy, row, operand) != 0);
  }
}

// ---- The whole graph

// Activations are moved neither between parts of the batch nor between those of the input's sequence.
static fsdp_status check_outputs(const decider *d) {
  const fsdp_spec *input = &d->specs->input;
  for (int m = 0; m < d->graph->module_count; m++) {
    const fsdp_spec *spec = d->specs->outputs[m];
    char text[FSDP_SPEC_TEXT_BYTES], axes[FSDP_MESH_TEXT_BYTES], path[FSDP_NAME_BYTES];
    if (spec->source < FSDP_SPEC_PRESET) continue;
    bool has_batch = fsdp_dim_axes_equal(&spec->dim[0], &input->dim[0], d->mesh);
    bool has_parts =
        spec->dims != FSDP_OUTPUT_DIMS || !(d->out->parts & ~fsdp_factored_axes(d->axes, &spec->dim[1]));
    fsdp_graph_module_path(d->graph, m, path);
    fsdp_spec_print(spec, d->mesh, text);
    if (!has_batch)
      return fsdp_fail(d->error, FSDP_ERR_INPUT,
                       "%s: \"%s\": %s differs from the batch, which lies over %s: sequences are not moved "
                       "between ranks; use the batch's axes, in its order, for dimension 0",
                       spec->place, path, text,
                       d->out->batch ? fsdp_mesh_print_axes(&d->axes->mesh, d->out->batch, axes) : "no axis");
    if (!has_parts)
      return fsdp_fail(
          d->error, FSDP_ERR_INPUT,
          "%s: \"%s\": %s does not cut the sequence over %s, as the input does: positions are not "
          "moved between ranks; name the input's axes in dimension 1",
          spec->place, path, text, fsdp_mesh_print_axes(&d->axes->mesh, d->out->parts, axes));
  }
  return FSDP_OK;
}

// The axes of each op's letters that the input lacks, as propagation finds them.
static fsdp_status find_strategies(const decider *d) {
  const fsdp_axis_set input = d->out->batch | d->out->parts;
  fsdp_propagation *propagation;
  if (!(fsdp_mesh_all_axes(&d->axes->mesh) & ~input)) return FSDP_OK;
  fsdp_status status = fsdp_seeds_propagate(d->specs, d->graph, d->mesh, FSDP_F32, &propagation, d->error);
  if (status) return status;
  for (int o = 0; o < d->graph->forward_count; o++)
    for (int l = 0; l < 26; l++) {
      const fsdp_axis_set axes = fsdp_slice_axes(&propagation->mesh, propagation->operators[o].axes.of[l]);
      d->out->ops[o].strategy.of[l] = fsdp_factored_of(d->axes, axes) & ~input;
    }
  fsdp_propagation_destroy(propagation);
  return FSDP_OK;
}

// ---- Routed experts

// The axes of the batch that cut the experts of a node's weights; all nodes' are the same.
static fsdp_status find_dispatch(const decider *d, const fsdp_node *node, bool *found) {
  const int axis = fsdp_mesh_find(d->mesh, FSDP_AXIS_EXPERT);
  for (int o = 0; o < node->operand_count; o++) {
    const fsdp_value *value = &d->graph->values[node->operands[o].value];
    if (value->role != FSDP_VALUE_PARAM || !fsdp_node_stacks_experts(node, o, 0)) continue;
    const fsdp_spec *spec = &d->specs->params[value->param];
    fsdp_axis_set axes = fsdp_dim_axis_set(&spec->dim[0], d->mesh) & (axis < 0 ? 0 : 1u << axis);
    axes = fsdp_factored_of(d->axes, axes) & d->out->batch;
    if (*found && axes != d->out->dispatch)
      return fsdp_fail(d->error, FSDP_ERR_INPUT,
                       "%s: %s: experts of some weights are cut over the axis expert and those of others are "
                       "not: name it in the first dimension of all of them, or of none",
                       *spec->place ? spec->place : "--sharding", d->graph->params[value->param].name);
    d->out->dispatch = axes;
    *found = true;
  }
  return FSDP_OK;
}

// Gives ops on routed experts the axis, and all others its rows as pieces.
static void dispatch(const decider *d) {
  const fsdp_axis_set axes = d->out->dispatch;
  for (int n = 0; n < d->graph->forward_count && axes; n++) {
    const fsdp_op_letters *row = fsdp_op_letters_of(d->graph->forward[n].kind);
    fsdp_decided_op *op = &d->out->ops[n];
    const bool routed = fsdp_op_letter_find(row, 'u') || fsdp_op_letter_find(row, 'a');
    if (routed) op->strategy.of['u' - 'a'] |= axes;
    if (routed && fsdp_op_letter_find(row, 'e')) op->strategy.of['e' - 'a'] |= axes;
    if (!routed) op->strategy.of['t' - 'a'] |= axes;
    op->sum.rows |= axes;
    op->biases_rows |= axes;
  }
  for (int v = 0; v < d->graph->value_count; v++) d->out->stored[v].axes.rows |= axes;
}

// ---- All of it

fsdp_status fsdp_decisions_make(const fsdp_graph *graph, const fsdp_specs *specs, const fsdp_mesh *mesh,
                                const fsdp_factored_mesh *axes, fsdp_decisions **out, fsdp_error *error) {
  const size_t values = (size_t)graph->value_count;
  fsdp_decisions *made = fsdp_alloc_zeroed(1, sizeof *made);
  decider d = {.graph = graph, .specs = specs, .mesh = mesh, .axes = axes, .out = made, .error = error};
  made->batch = fsdp_factored_axes(axes, &specs->input.dim[0]);
  made->parts = fsdp_factored_axes(axes, &specs->input.dim[1]);
  made->pieces =
      fsdp_factored_of(axes, fsdp_specs_sequence(specs, graph, mesh)) & ~(made->batch | made->parts);
  made->ops = fsdp_alloc_zeroed((size_t)graph->forward_count, sizeof *made->ops);
  made->output_of = fsdp_alloc(values * sizeof *made->output_of);
  made->stored = fsdp_alloc_zeroed(values, sizeof *made->stored);
  find_outputs(&d);
  fsdp_status status = check_outputs(&d);
  bool found = false;
  for (int n = 0; n < graph->forward_count && !status; n++)
    status = find_dispatch(&d, &graph->forward[n], &found);
  if (!status) status = find_strategies(&d);
  for (int n = 0; n < graph->forward_count; n++) {
    fsdp_decided_op *op = &made->ops[n];
    op->sum = fsdp_decisions_stored(made, axes, fsdp_specs_residual_rule(specs, graph, &graph->forward[n]));
    op->splits_sum = op->sum.columns != 0;
  }
  for (int n = 0; n < graph->forward_count && !status; n++)
    store_outputs(&d, &graph->forward[n], &made->ops[n]);
  if (!status) dispatch(&d);
  if (status) fsdp_decisions_destroy(made);
  *out = status ? NULL : made;
  return status;
}

void fsdp_decisions_destroy(fsdp_decisions *decisions) {
  if (!decisions) return;
  free(decisions->ops);
  free(decisions->output_of);
  free(decisions->stored);
  free(decisions);
}
