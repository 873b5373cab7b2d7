#include "runtime/plan/sharding/op_specs.h"

#include "runtime/base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- Propagation over a model

// Axes that cut a letter of an operator; none if it has no such letter.
static fsdp_axis_set letter_axes(const fsdp_propagation *propagation, int op, char letter) {
  return fsdp_strategy_axes(&propagation->operators[op].axes, letter);
}

static int64_t batch_slices(const fsdp_propagation *propagation) {
  int64_t most = 1;
  for (int o = 0; o < propagation->flow->operator_count; o++) {
    int64_t slices = fsdp_slices(&propagation->mesh, letter_axes(propagation, o, 'b'));
    if (slices > most) most = slices;
  }
  return most;
}

fsdp_status fsdp_propagate_graph(const fsdp_graph *graph, const fsdp_slice_mesh *mesh,
                                 const fsdp_given_strategies *given, fsdp_dtype compute,
                                 fsdp_propagation **propagation, fsdp_error *error) {
  // With a batch for all ranks no count is too large; then with the batch that there is.
  int64_t batches = fsdp_slices(mesh, (1u << mesh->count) - 1);
  fsdp_status status = FSDP_OK;
  *propagation = NULL;
  for (int pass = 0; pass < 2 && !status; pass++) {
    if (*propagation) batches = batch_slices(*propagation);
    fsdp_propagation_destroy(*propagation);
    fsdp_dataflow *flow = fsdp_dataflow_of_graph(graph, batches, compute);
    status = fsdp_propagate(flow, mesh, given, propagation, error);
    if (status)
      fsdp_dataflow_destroy(flow);
    else
      (*propagation)->own_flow = flow;
  }
  return status;
}

// The operator that reads a value of the graph first.
static fsdp_tensor_reader reader_of(const fsdp_propagation *propagation, int value) {
  const fsdp_tensor_reader reader = fsdp_dataflow_reader_of(propagation->flow, value);
  FSDP_CHECK(reader.op >= 0, "nothing reads value %d", value);
  return reader;
}

// Where an input or a parameter of the graph lies.
static fsdp_tensor_axes axes_of(const fsdp_propagation *propagation, int value) {
  const fsdp_tensor_reader reader = reader_of(propagation, value);
  return fsdp_operand_axes(&propagation->flow->operators[reader.op], reader.operand,
                           &propagation->operators[reader.op]);
}

// ---- The mesh

// Whether two axes always cut the same letters.
static bool together(const fsdp_propagation *propagation, int a, int b) {
  const fsdp_dataflow *flow = propagation->flow;
  for (int o = 0; o < flow->operator_count; o++)
    for (int l = 0; l < flow->operators[o].letter_count; l++) {
      fsdp_axis_set axes = fsdp_operator_axes(&flow->operators[o], &propagation->operators[o], l);
      if ((axes >> a & 1) != (axes >> b & 1)) return false;
    }
  return true;
}

static const char *axis_name(const fsdp_propagation *propagation, int axis, const char *batch_axis) {
  const fsdp_dataflow *flow = propagation->flow;
  fsdp_axis_set context = 0;
  for (int o = 0; o < flow->operator_count; o++) {
    if (letter_axes(propagation, o, 'b') >> axis & 1) return batch_axis;
    if (flow->tensors[flow->operators[o].operands[0].tensor].role == FSDP_TENSOR_INPUT)
      context |= letter_axes(propagation, o, 't');
  }
  return context >> axis & 1 ? FSDP_AXIS_CONTEXT : FSDP_AXIS_TENSOR;
}

fsdp_status fsdp_mesh_of_propagation(const fsdp_propagation *propagation, const char *batch_axis,
                                     fsdp_mesh *mesh, fsdp_error *error) {
  *mesh = (fsdp_mesh){0};
  int further = 0;
  for (int a = 0; a < propagation->mesh.count; a++) {
    int size = propagation->mesh.sizes[a], first = a;
    for (; a + 1 < propagation->mesh.count && together(propagation, first, a + 1); a++)
      size *= propagation->mesh.sizes[a + 1];
    char name[FSDP_AXIS_NAME_BYTES];
    snprintf(name, sizeof name, "%s", axis_name(propagation, first, batch_axis));
    if (fsdp_mesh_find(mesh, name) >= 0) snprintf(name, sizeof name, "axis%d", ++further);
    if (!fsdp_mesh_add(mesh, name, size))
      return fsdp_fail(error, FSDP_ERR_OPTION,
                       "--op-strategies: the operators are cut over more axes than a mesh has: give --mesh, "
                       "with an axis for each group of ranks");
  }
  fsdp_mesh_complete(mesh);
  return FSDP_OK;
}

// ---- Specs

typedef struct spec_maker {
  const fsdp_propagation *propagation;
  const fsdp_graph *graph;
  const fsdp_mesh *mesh;
  fsdp_specs *specs;
  fsdp_tensor_axes tokens; // where they lie
} spec_maker;

static void add_axes(const spec_maker *m, fsdp_dim_axes *dim, fsdp_axis_set axes) {
  fsdp_dim_axes_cut(dim, fsdp_slice_axes(&m->propagation->mesh, axes));
}

static void begin_spec(fsdp_spec *spec, int dims) {
  *spec = (fsdp_spec){.dims = dims, .source = FSDP_SPEC_GIVEN};
  snprintf(spec->place, sizeof spec->place, "%s", FSDP_OP_STRATEGIES_PLACE);
}

static fsdp_status place_input(const spec_maker *m, fsdp_error *error) {
  fsdp_tensor_axes targets = axes_of(m->propagation, m->graph->inputs[FSDP_INPUT_TARGETS]);
  const int first = reader_of(m->propagation, m->graph->inputs[FSDP_INPUT_TOKENS]).op;
  const int last = reader_of(m->propagation, m->graph->inputs[FSDP_INPUT_TARGETS]).op;
  char names[2][FSDP_OPERATOR_TEXT];
  m->specs->input = (fsdp_spec){.dims = 2};
  for (int d = 0; d < 2; d++) add_axes(m, &m->specs->input.dim[d], m->tokens.dim[d]);
  if (m->tokens.dim[0] == targets.dim[0] && m->tokens.dim[1] == targets.dim[1]) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "--op-strategies: %s cuts tokens otherwise than %s cuts targets, and a rank has both of "
                   "the same positions: give one of them a strategy with the other's batch and sequence",
                   fsdp_operator_print(m->propagation->flow, first, names[0]),
                   fsdp_operator_print(m->propagation->flow, last, names[1]));
}

// Cuts a parameter as its readers do; the input's axes, but data, cut another dimension, if there is one.
// Over these a parameter is gathered for its readers, also where one of them is cut over them otherwise.
static void place_param(const spec_maker *m, int param, bool shards_weights) {
  fsdp_spec *spec = &m->specs->params[param];
  const fsdp_tensor_axes axes = axes_of(m->propagation, m->graph->params[param].value);
  int free_dim = 0;
  begin_spec(spec, m->graph->params[param].dims);
  for (int d = 0; d < spec->dims; d++)
    add_axes(m, &spec->dim[d], axes.dim[d] & ~(m->tokens.dim[0] | m->tokens.dim[1]));
  if (!shards_weights) return;
  while (free_dim < spec->dims - 1 && spec->dim[free_dim].count) free_dim++;
  if (spec->dim[free_dim].count) free_dim = 0;
  for (int d = 0; d < 2; d++)
    for (int i = 0; i < m->specs->input.dim[d].count; i++) {
      int axis = m->specs->input.dim[d].axes[i];
      fsdp_dim_axes *dim = &spec->dim[free_dim];
      if (strcmp(m->mesh->axes[axis].name, FSDP_AXIS_DATA) != 0) dim->axes[dim->count++] = (signed char)axis;
    }
}

// Rows, and columns: of what the operator makes, or of the head's logits. What cuts the tokens' sequence cuts
// that of every output: positions are not moved between ranks.
static void place_output(const spec_maker *m, int module, int op) {
  const fsdp_operator *o = &m->propagation->flow->operators[op];
  fsdp_axis_set columns = letter_axes(m->propagation, op, 'v');
  for (int i = o->operand_count - 1; i >= o->input_count; i--)
    if (m->propagation->flow->tensors[o->operands[i].tensor].dims == FSDP_OUTPUT_DIMS)
      columns = fsdp_operand_axes(o, i, &m->propagation->operators[op]).dim[2];
  const fsdp_axis_set parts = m->tokens.dim[1];
  fsdp_spec *spec = m->specs->outputs[module];
  begin_spec(spec, FSDP_OUTPUT_DIMS);
  add_axes(m, &spec->dim[0], letter_axes(m->propagation, op, 'b') & ~parts);
  add_axes(m, &spec->dim[1], letter_axes(m->propagation, op, 't') | parts);
  add_axes(m, &spec->dim[2], columns & ~parts);
}

static fsdp_status check_axes(const spec_maker *m, fsdp_error *error) {
  fsdp_axis_set used = 0;
  for (int o = 0; o < m->propagation->flow->operator_count; o++)
    for (int l = 0; l < 26; l++) used |= m->propagation->operators[o].axes.of[l];
  for (int a = 0; a < m->propagation->mesh.count; a++) {
    const fsdp_mesh_axis *axis = &m->mesh->axes[m->propagation->mesh.axis[a]];
    if (used >> a & 1) continue;
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "--mesh: axis %s has %d ranks, over which --op-strategies cut nothing, so they would "
                     "all do the same: give an operator more slices, or use %s=1",
                     axis->name, axis->size, axis->name);
  }
  return FSDP_OK;
}

fsdp_status fsdp_specs_of_propagation(const fsdp_propagation *propagation, const fsdp_graph *graph,
                                      const fsdp_mesh *mesh, bool shards_weights, fsdp_specs **specs,
                                      fsdp_error *error) {
  const spec_maker m = {.propagation = propagation,
                        .graph = graph,
                        .mesh = mesh,
                        .specs = fsdp_specs_default(graph, mesh),
                        .tokens = axes_of(propagation, graph->inputs[FSDP_INPUT_TOKENS])};
  fsdp_status status = place_input(&m, error);
  int *maker = fsdp_alloc((size_t)graph->module_count * sizeof *maker);
  fsdp_specs_outputs_as_input(m.specs, graph);
  fsdp_specs_find_makers(graph, maker);
  for (int p = 0; p < graph->param_count; p++) place_param(&m, p, shards_weights);
  for (int i = 0; i < graph->module_count; i++)
    if (maker[i] >= 0 && m.specs->outputs[i][0].dims == FSDP_OUTPUT_DIMS) place_output(&m, i, maker[i]);
  free(maker);
  if (!status) status = check_axes(&m, error);
  if (status) fsdp_specs_destroy(m.specs);
  *specs = status ? NULL : m.specs;
  return status;
}
