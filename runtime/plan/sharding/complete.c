#include "runtime/plan/sharding/complete.h"

#include "runtime/base/check.h"
#include "runtime/plan/sharding/decisions.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct completer {
  fsdp_specs *specs;
  const fsdp_graph *graph;
  const fsdp_mesh *mesh;
  fsdp_factored_mesh axes; // the mesh, of which nothing is factored
  fsdp_network *network;
  fsdp_slice_mesh slices;
  // Sets of axes of `slices`: what cuts the input's batch and sequence, and what lines of outputs put on
  // further pieces of the sequence.
  fsdp_axis_set batch, parts, pieces;
  fsdp_operator_limits *limits; // by operator
  fsdp_operator_strategy *decided;
  fsdp_error *error;
} completer;

// ---- Axes

// As axes of `slices`.
static fsdp_axis_set sliced(const completer *c, fsdp_axis_set axes) {
  fsdp_axis_set set = 0;
  for (int a = 0; a < c->slices.count; a++)
    if (axes >> c->slices.axis[a] & 1) set |= 1u << a;
  return set;
}

static fsdp_axis_set dim_axes(const completer *c, const fsdp_dim_axes *dim) {
  return sliced(c, fsdp_dim_axis_set(dim, c->mesh));
}

static fsdp_axis_set input_axes(const completer *c) {
  return c->batch | c->parts;
}

static const fsdp_node *node_of(const completer *c, int op) {
  return &c->graph->forward[c->network->operators[op].node];
}

// The parameter that an operand of an operator is, -1: it is none.
static int param_of(const completer *c, const fsdp_operator_operand *operand) {
  const fsdp_operator_tensor *tensor = &c->network->tensors[operand->tensor];
  return tensor->role == FSDP_TENSOR_PARAMETER ? c->graph->values[tensor->source].param : -1;
}

static bool has_line(const completer *c, int param) {
  return c->specs->params[param].source != FSDP_SPEC_DEFAULT;
}

// Whether an axis may cut an operand.
static bool is_cuttable(const fsdp_operator *op, const fsdp_operator_operand *operand) {
  for (int d = 0; d < FSDP_MAX_DIMS; d++)
    if (operand->letter[d] >= 0 && !op->letters[operand->letter[d]].is_whole) return true;
  return false;
}

// ---- What lines say of an operator

// Whether a line of an output, not a default, places it.
static bool is_ruled(const fsdp_spec *spec) {
  return spec->source >= FSDP_SPEC_PRESET && spec->dims == FSDP_OUTPUT_DIMS;
}

// Lets axes cut `letter` alone, those of them that it may have and that nothing else has yet.
static void pin(fsdp_operator_limits *limits, int letter_count, int letter, fsdp_axis_set axes,
                fsdp_axis_set *pinned) {
  axes &= limits->letters[letter] & ~*pinned;
  for (int l = 0; l <= letter_count; l++)
    if (l != letter) limits->letters[l] &= ~axes;
  *pinned |= axes;
}

// Axes of the input cut rows, and those of pieces may where the op can work on them; others cut no rows.
static void limit_rows(const completer *c, int op, fsdp_axis_set pieces) {
  fsdp_operator *o = &c->network->operators[op];
  fsdp_operator_limits *limits = &c->limits[op];
  const int none = o->letter_count, b = fsdp_operator_letter_find(o, 'b'),
            t = fsdp_operator_letter_find(o, 't');
  for (int l = 0; l <= none; l++) limits->letters[l] = ~input_axes(c);
  if (b >= 0) limits->letters[b] = 0;
  if (t >= 0) limits->letters[t] = pieces;
  limits->letters[b < 0 ? none : b] |= c->batch;
  limits->letters[t < 0 ? none : t] |= c->parts;
  for (int l = 0; l < none; l++)
    if (l == b || l == t) o->letters[l].limit = INT64_MAX; // a rank has the rows that it has, however few
}

// The partition lets an op without matrices have the columns that it is given, and any op pieces of rows only
// if it is given them.
static void follow_input(const completer *c, int op) {
  const fsdp_operator *o = &c->network->operators[op];
  fsdp_operator_limits *limits = &c->limits[op];
  limits->followed = ~input_axes(c);
  for (int l = 0; l < o->letter_count; l++) {
    char name = o->letters[l].name;
    if (name == 't') limits->with_input |= 1u << l;
    if (fsdp_decisions_follows_columns(c->graph, node_of(c, op), name)) limits->as_input |= 1u << l;
  }
}

// A weight's line names the axes of its letters; those that it does not name cut none of them. False: a line
// of another weight says otherwise.
static bool limit_weight(const completer *c, int op, int operand, fsdp_axis_set *pinned) {
  const fsdp_operator *o = &c->network->operators[op];
  const fsdp_spec *spec = &c->specs->params[param_of(c, &o->operands[operand])];
  fsdp_operator_limits *limits = &c->limits[op];
  const fsdp_axis_set others = *pinned;
  for (int d = 0; d < spec->dims; d++) {
    int letter = o->operands[operand].letter[d];
    if (letter < 0 || o->letters[letter].is_whole) continue;
    fsdp_axis_set axes = dim_axes(c, &spec->dim[d]) & ~input_axes(c);
    if ((axes ^ limits->letters[letter]) & others) return false;
    pin(limits, o->letter_count, letter, axes, pinned);
    limits->letters[letter] &= axes | *pinned;
  }
  return true;
}

// Lines of weights say what they say of their operator, all of them together. *place: of the first.
static fsdp_status limit_weights(const completer *c, int op, fsdp_axis_set *pinned, const char **place) {
  const fsdp_operator *o = &c->network->operators[op];
  int first = -1;
  for (int i = 0; i < o->input_count; i++) {
    int param = param_of(c, &o->operands[i]);
    if (param < 0 || !has_line(c, param) || !is_cuttable(o, &o->operands[i])) continue;
    if (!limit_weight(c, op, i, pinned))
      return fsdp_fail(c->error, FSDP_ERR_INPUT,
                       "%s: %s is cut otherwise than %s (%s), and one product reads both: cut them alike, or "
                       "leave one of them out",
                       c->specs->params[param].place, c->graph->params[param].name,
                       c->graph->params[first].name, *place);
    if (first >= 0) continue;
    first = param;
    *place = c->specs->params[param].place;
  }
  return FSDP_OK;
}

// Whether anything else than a norm's sum reads what an operator makes.
static bool is_read(const completer *c, int op) {
  int made = c->network->operators[op].operands[c->network->operators[op].input_count].tensor;
  for (int r = op + 1; r < c->network->operator_count; r++)
    for (int i = 0; i < c->network->operators[r].input_count; i++)
      if (c->network->operators[r].operands[i].tensor == made)
        if (!fsdp_op_is_norm(node_of(c, r)->kind)) return true;
  return false;
}

// A product makes its outputs as their lines store them, in columns or whole. Those that are added to the
// residual stream may be sums that are scattered.
static const char *limit_output(const completer *c, int op, fsdp_axis_set *pinned) {
  const fsdp_operator *o = &c->network->operators[op];
  const fsdp_node *node = node_of(c, op);
  int outputs = fsdp_operator_letter_find(o, 'o');
  const char *place = NULL;
  for (int w = 0; w < node->weight_count && outputs >= 0; w++) {
    const fsdp_param *weight = &c->graph->params[c->graph->values[node->weights[w]].param];
    const fsdp_spec *spec = &c->specs->modules[weight->module];
    if (!is_ruled(spec) || !is_read(c, op)) continue;
    fsdp_axis_set columns = dim_axes(c, &spec->dim[2]) & ~input_axes(c);
    c->limits[op].letters[outputs] &= columns | *pinned;
    pin(&c->limits[op], o->letter_count, outputs, columns, pinned);
    if (!place && columns) place = spec->place;
  }
  return place;
}

// Norms are taken of pieces where the residual stream, or what they make, is stored so.
static const char *limit_norm(const completer *c, int op) {
  const fsdp_node *node = node_of(c, op);
  const fsdp_spec *residual = fsdp_decisions_residual_rule(c->graph, c->specs, node);
  const fsdp_spec *own = &c->specs->modules[node->module];
  fsdp_axis_set rows = fsdp_decisions_norm_rows(c->graph, c->specs, &c->axes, node, true), none = 0;
  rows = sliced(c, rows) & c->pieces;
  limit_rows(c, op, rows);
  pin(&c->limits[op], c->network->operators[op].letter_count,
      fsdp_operator_letter_find(&c->network->operators[op], 't'), rows, &none);
  return residual ? residual->place : is_ruled(own) ? own->place : NULL;
}

// If nothing is left to choose, the operator is given.
static void decide_given(const completer *c, int op, const char *place) {
  const fsdp_operator *o = &c->network->operators[op];
  fsdp_operator_strategy strategy = {.decision = FSDP_DECIDED_GIVEN, .from = -1, .place = place};
  for (int a = 0; a < c->slices.count; a++) {
    int options = 0;
    for (int l = 0; l <= o->letter_count; l++) {
      bool whole = l < o->letter_count && o->letters[l].is_whole;
      if (whole || !(c->limits[op].letters[l] >> a & 1)) continue;
      options++;
      if (l < o->letter_count) strategy.axes.of[o->letters[l].name - 'a'] |= 1u << a;
    }
    if (options == 0) c->limits[op].letters[o->letter_count] |= 1u << a;
    if (options > 1) return;
  }
  if (place) c->decided[op] = strategy;
}

static fsdp_status limit_operator(const completer *c, int op) {
  const fsdp_node *node = node_of(c, op);
  const char *place = NULL;
  fsdp_axis_set pinned = 0;
  if (fsdp_op_is_norm(node->kind)) {
    place = limit_norm(c, op);
  } else {
    bool on_pieces =
        fsdp_decisions_follows_rows(c->graph, node) || (fsdp_op_gathers_keys(node->kind) && !c->parts);
    limit_rows(c, op, on_pieces ? c->pieces : 0);
    follow_input(c, op);
    fsdp_status status = limit_weights(c, op, &pinned, &place);
    if (status) return status;
    const char *stored = limit_output(c, op, &pinned);
    if (!place) place = stored;
  }
  decide_given(c, op, place);
  return FSDP_OK;
}

// ---- Specs

static void place_param(const completer *c, const fsdp_propagation *propagation, int op, int operand) {
  const fsdp_operator *o = &c->network->operators[op];
  fsdp_spec *spec = &c->specs->params[param_of(c, &o->operands[operand])];
  fsdp_tensor_axes axes = fsdp_operand_axes(o, operand, &propagation->operators[op]);
  for (int d = 0; d < spec->dims; d++)
    for (int a = 0; a < c->slices.count; a++)
      if (axes.dim[d] >> a & 1)
        fsdp_dim_axes_add(&spec->dim[d], c->mesh, c->mesh->axes[c->slices.axis[a]].name);
  spec->source = FSDP_SPEC_PROPAGATED;
  snprintf(spec->place, sizeof spec->place, "%s", FSDP_COMPLETED_PLACE);
}

// Weights that several operators read lie as all of them want them.
static void place_params(const completer *c, const fsdp_propagation *propagation) {
  for (int o = 0; o < c->network->operator_count; o++) {
    const fsdp_operator *op = &c->network->operators[o];
    for (int i = 0; i < op->input_count; i++) {
      int param = param_of(c, &op->operands[i]);
      if (param >= 0 && !has_line(c, param) && is_cuttable(op, &op->operands[i]))
        place_param(c, propagation, o, i);
    }
  }
}

static completer begin(fsdp_specs *specs, const fsdp_graph *graph, const fsdp_mesh *mesh,
                       fsdp_dtype compute) {
  completer c = {.specs = specs, .graph = graph, .mesh = mesh, .slices = fsdp_slice_mesh_of(mesh)};
  c.axes = (fsdp_factored_mesh){.mesh = *mesh, .axis = -1};
  c.batch = dim_axes(&c, &specs->input.dim[0]);
  c.parts = dim_axes(&c, &specs->input.dim[1]);
  c.pieces = sliced(&c, fsdp_decisions_output_rows(graph, specs, &c.axes)) & ~input_axes(&c);
  c.network = fsdp_network_of_graph(graph, fsdp_slices(&c.slices, c.batch), compute);
  return c;
}

bool fsdp_specs_are_open(const fsdp_specs *specs, const fsdp_graph *graph, const fsdp_mesh *mesh) {
  bool open = false;
  for (int p = 0; p < graph->param_count; p++) open |= specs->params[p].source == FSDP_SPEC_DEFAULT;
  if (!open) return false;
  const completer c = begin((fsdp_specs *)specs, graph, mesh, FSDP_F32);
  bool others = (((1u << c.slices.count) - 1) & ~input_axes(&c)) != 0;
  open = false;
  for (int o = 0; o < c.network->operator_count && others; o++) {
    const fsdp_operator *op = &c.network->operators[o];
    for (int i = 0; i < op->input_count && !open; i++) {
      int param = param_of(&c, &op->operands[i]);
      open = param >= 0 && !has_line(&c, param) && is_cuttable(op, &op->operands[i]);
    }
  }
  fsdp_network_destroy(c.network);
  return open;
}

fsdp_status fsdp_specs_complete(fsdp_specs *specs, const fsdp_graph *graph, const fsdp_mesh *mesh,
                                fsdp_dtype compute, fsdp_network **network, fsdp_propagation **propagation,
                                fsdp_error *error) {
  completer c = begin(specs, graph, mesh, compute);
  size_t count = (size_t)c.network->operator_count;
  c.limits = fsdp_alloc_zeroed(count + 1, sizeof *c.limits);
  c.decided = fsdp_alloc_zeroed(count + 1, sizeof *c.decided);
  c.error = error;
  *propagation = NULL;
  fsdp_status status = FSDP_OK;
  for (int o = 0; o < c.network->operator_count && !status; o++) status = limit_operator(&c, o);
  if (!status) status = fsdp_propagate_within(c.network, &c.slices, c.limits, c.decided, propagation, error);
  if (!status) place_params(&c, *propagation);
  free(c.limits);
  free(c.decided);
  if (status) fsdp_network_destroy(c.network);
  *network = status ? NULL : c.network;
  return status;
}
