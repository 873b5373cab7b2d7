#include "runtime/plan/sharding/seeds.h"

#include "runtime/base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct seeder {
  const fsdp_specs *specs;
  const fsdp_graph *graph;
  const fsdp_mesh *mesh;
  fsdp_dataflow *flow;
  fsdp_slice_mesh slices;
  // Sets of axes of `slices`: what cuts the input's batch and sequence, and what lines of outputs put on
  // further pieces of the sequence.
  fsdp_axis_set batch, parts, pieces;
  fsdp_operator_limits *limits; // by operator
  fsdp_operator_strategy *decided;
  fsdp_error *error;
} seeder;

// ---- Axes

static fsdp_axis_set dim_axes(const seeder *s, const fsdp_dim_axes *dim) {
  return fsdp_slice_axes_of(&s->slices, fsdp_dim_axis_set(dim, s->mesh));
}

static fsdp_axis_set input_axes(const seeder *s) {
  return s->batch | s->parts;
}

static const fsdp_node *node_of(const seeder *s, int op) {
  return &s->graph->forward[op];
}

// The parameter that an operand of an operator is, -1: it is none.
static int param_of(const fsdp_graph *graph, const fsdp_dataflow *flow,
                    const fsdp_operator_operand *operand) {
  const fsdp_operator_tensor *tensor = &flow->tensors[operand->tensor];
  return tensor->role == FSDP_TENSOR_PARAMETER ? graph->values[tensor->source].param : -1;
}

static bool has_line(const seeder *s, int param) {
  return s->specs->params[param].source != FSDP_SPEC_DEFAULT;
}

// Whether an axis may cut an operand.
static bool is_cuttable(const fsdp_operator *op, const fsdp_operator_operand *operand) {
  for (int d = 0; d < FSDP_MAX_DIMS; d++)
    if (operand->letter[d] >= 0 && !op->letters[operand->letter[d]].is_whole) return true;
  return false;
}

// ---- What an operator can do

// Whether it follows its input to pieces of rows: tokens and targets are of all rows, norms take them as the
// residual stream is stored, and routed experts take all.
static bool follows_rows(const seeder *s, const fsdp_node *node) {
  const fsdp_op_letter *rows = fsdp_op_letter_find(fsdp_op_letters_of(node->kind), 'n');
  bool follows = rows && !rows->is_whole && !fsdp_op_has(node->kind, FSDP_TRAIT_NORM);
  for (int o = 0; o < node->operand_count; o++)
    follows = follows && s->graph->values[node->operands[o].value].role != FSDP_VALUE_INPUT;
  return follows;
}

// Whether it follows its input to shards of columns in a letter, which no parameter of it has.
static bool follows_columns(const seeder *s, const fsdp_node *node, char letter) {
  const fsdp_op_letters *op = fsdp_op_letters_of(node->kind);
  const fsdp_op_letter *found = fsdp_op_letter_find(op, letter);
  bool follows = found && !found->is_whole && !node->weight_count && !strchr("nbt", letter);
  for (int o = 0; o < node->operand_count && follows; o++)
    follows = s->graph->values[node->operands[o].value].role != FSDP_VALUE_PARAM ||
              !fsdp_op_operand_has(&op->operands[o], letter);
  return follows;
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
static void limit_rows(const seeder *s, int op, fsdp_axis_set pieces) {
  fsdp_operator *o = &s->flow->operators[op];
  fsdp_operator_limits *limits = &s->limits[op];
  const int none = o->letter_count, b = fsdp_operator_letter_find(o, 'b'),
            t = fsdp_operator_letter_find(o, 't');
  for (int l = 0; l <= none; l++) limits->letters[l] = ~input_axes(s);
  if (b >= 0) limits->letters[b] = 0;
  if (t >= 0) limits->letters[t] = pieces;
  limits->letters[b < 0 ? none : b] |= s->batch;
  limits->letters[t < 0 ? none : t] |= s->parts;
  for (int l = 0; l < none; l++)
    if (l == b || l == t) o->letters[l].limit = INT64_MAX; // a rank has the rows that it has, however few
}

// An op without matrices has the columns that it is given, and any op pieces of rows only if it is given
// them; but attention whose module's output is to lie in pieces takes its queries so from a whole q|k|v.
static void follow_input(const seeder *s, int op) {
  const fsdp_operator *o = &s->flow->operators[op];
  const fsdp_node *node = node_of(s, op);
  fsdp_operator_limits *limits = &s->limits[op];
  limits->followed = ~input_axes(s);
  for (int l = 0; l < o->letter_count; l++) {
    char name = o->letters[l].name;
    if (name == 't') limits->may_match_input |= 1u << l;
    if (!follows_columns(s, node, name)) continue;
    limits->must_match_input |= 1u << l;
    s->flow->operators[op].letters[l].limit = INT64_MAX; // some ranks may have padding alone
  }
  if (!fsdp_op_gathers_keys(node->kind) || s->parts || !s->pieces) return;
  const fsdp_spec *made = s->specs->outputs[s->graph->values[node->operands[0].value].module];
  const fsdp_axis_set sequence = fsdp_slice_axes_of(&s->slices, fsdp_spec_sequence(made, s->mesh));
  if ((sequence & s->pieces) == s->pieces) limits->cut_where_whole = limits->may_match_input;
}

// What lines of an operator's weights say of its letters: the axes, and the parameter that says so; -1: none.
typedef struct said_axes {
  fsdp_axis_set axes[FSDP_OPERATOR_LETTERS];
  int param[FSDP_OPERATOR_LETTERS];
} said_axes;

static fsdp_status hear_weight(const seeder *s, int op, int operand, said_axes *said) {
  const fsdp_operator *o = &s->flow->operators[op];
  const int param = param_of(s->graph, s->flow, &o->operands[operand]);
  const fsdp_spec *spec = &s->specs->params[param];
  const char *place = *spec->place ? spec->place : "--sharding", *name = s->graph->params[param].name;
  for (int d = 0; d < spec->dims; d++) {
    const int letter = o->operands[operand].letter[d];
    const fsdp_axis_set axes = dim_axes(s, &spec->dim[d]) & ~input_axes(s);
    char names[FSDP_MESH_TEXT_BYTES];
    if (axes && (letter < 0 || o->letters[letter].is_whole))
      return fsdp_fail(
          s->error, FSDP_ERR_INPUT,
          "%s: %s: its op needs this dimension whole on every rank, so it cannot be cut; use null there, or "
          "an axis that cuts the batch, instead of a cut over axis %s",
          place, name, fsdp_mesh_print_axes(s->mesh, fsdp_slice_axes(&s->slices, axes), names));
    if (letter < 0 || o->letters[letter].is_whole) continue;
    const int other = said->param[letter];
    if (other >= 0 && said->axes[letter] != axes)
      return fsdp_fail(
          s->error, FSDP_ERR_INPUT,
          "%s: %s is cut otherwise than %s (%s) over axis %s, and one product reads both: cut them "
          "alike, or leave one of them out",
          place, name, s->graph->params[other].name, s->specs->params[other].place,
          fsdp_mesh_print_axes(s->mesh, fsdp_slice_axes(&s->slices, axes ^ said->axes[letter]), names));
    said->axes[letter] = axes;
    if (other < 0) said->param[letter] = param;
  }
  return FSDP_OK;
}

// Whether a parameter is a bias of a product whose inputs are cut: it is added to whole sums, and says
// nothing of the product.
static bool is_apart(const seeder *s, int op, int param, const said_axes *said) {
  const int inputs = fsdp_operator_letter_find(&s->flow->operators[op], 'i');
  return s->graph->params[param].dims == 1 && inputs >= 0 && said->axes[inputs];
}

// Lines of weights say all of their operator's letters that they have. *place: of the first.
static fsdp_status limit_weights(const seeder *s, int op, fsdp_axis_set *pinned, const char **place) {
  const fsdp_operator *o = &s->flow->operators[op];
  said_axes said = {{0}, {0}};
  for (int l = 0; l < FSDP_OPERATOR_LETTERS; l++) said.param[l] = -1;
  for (int i = 0; i < o->input_count; i++) {
    const int param = param_of(s->graph, s->flow, &o->operands[i]);
    if (param < 0 || !has_line(s, param) || is_apart(s, op, param, &said)) continue;
    fsdp_status status = hear_weight(s, op, i, &said);
    if (status) return status;
    if (!*place && is_cuttable(o, &o->operands[i])) *place = s->specs->params[param].place;
  }
  for (int l = 0; l < o->letter_count; l++) {
    if (said.param[l] < 0) continue;
    pin(&s->limits[op], o->letter_count, l, said.axes[l], pinned);
    s->limits[op].letters[l] &= said.axes[l];
    if (said.axes[l]) s->flow->operators[op].letters[l].limit = INT64_MAX; // some ranks have padding alone
  }
  return FSDP_OK;
}

static int made_by(const seeder *s, int op) {
  return s->flow->operators[op].operands[s->flow->operators[op].input_count].tensor;
}

// Whether anything else than a norm's sum reads what an operator makes.
static bool is_read(const seeder *s, int op) {
  const int *first = &s->flow->first_reader[made_by(s, op)];
  for (int r = first[0]; r < first[1]; r++)
    if (!fsdp_op_has(node_of(s, s->flow->readers[r].op)->kind, FSDP_TRAIT_NORM)) return true;
  return false;
}

// A product makes its outputs as their lines store them, in columns or whole. Those that are added to the
// residual stream may be sums that are scattered.
static const char *limit_output(const seeder *s, int op, fsdp_axis_set *pinned) {
  const fsdp_operator *o = &s->flow->operators[op];
  const fsdp_node *node = node_of(s, op);
  int outputs = fsdp_operator_letter_find(o, 'o');
  const char *place = NULL;
  for (int w = 0; w < node->weight_count && outputs >= 0; w++) {
    const fsdp_param *weight = &s->graph->params[s->graph->values[node->weights[w]].param];
    const fsdp_spec *spec = s->specs->outputs[weight->module];
    if (!is_ruled(spec) || !is_read(s, op)) continue;
    fsdp_axis_set columns = dim_axes(s, &spec->dim[2]) & ~input_axes(s);
    s->limits[op].letters[outputs] &= columns | *pinned;
    pin(&s->limits[op], o->letter_count, outputs, columns, pinned);
    if (!place && columns) place = spec->place;
  }
  return place;
}

// Columns of several weights side by side are never gathered: a reader that takes them whole leaves the
// product only what lines of its weights or outputs say.
static void spare_columns(const seeder *s, int op, fsdp_axis_set pinned) {
  const fsdp_operator *o = &s->flow->operators[op];
  const int made = made_by(s, op), outputs = fsdp_operator_letter_find(o, 'o');
  if (node_of(s, op)->weight_count < 2 || outputs < 0) return;
  for (int r = s->flow->first_reader[made]; r < s->flow->first_reader[made + 1]; r++) {
    const fsdp_operator *reader = &s->flow->operators[s->flow->readers[r].op];
    const int letter = reader->operands[s->flow->readers[r].operand].letter[s->flow->tensors[made].dims - 1];
    if (letter < 0 || reader->letters[letter].is_whole) s->limits[op].letters[outputs] &= pinned;
  }
}

// Norms are taken of pieces where the residual stream, or what they make, is stored so.
static const char *limit_norm(const seeder *s, int op) {
  const fsdp_node *node = node_of(s, op);
  const fsdp_spec *residual = fsdp_specs_residual_rule(s->specs, s->graph, node);
  const fsdp_spec *own = s->specs->outputs[node->module];
  // A sum whose columns are cut is taken by itself.
  const bool with_sum = residual && !(dim_axes(s, &residual->dim[2]) & ~input_axes(s));
  fsdp_axis_set rows = fsdp_spec_sequence(own, s->mesh), none = 0;
  if (with_sum) rows |= fsdp_spec_sequence(residual, s->mesh);
  rows = fsdp_slice_axes_of(&s->slices, rows) & s->pieces;
  limit_rows(s, op, rows);
  pin(&s->limits[op], s->flow->operators[op].letter_count,
      fsdp_operator_letter_find(&s->flow->operators[op], 't'), rows, &none);
  return residual ? residual->place : is_ruled(own) ? own->place : NULL;
}

// If nothing is left to choose, the operator is given.
static void decide_given(const seeder *s, int op, const char *place) {
  const fsdp_operator *o = &s->flow->operators[op];
  fsdp_operator_strategy strategy = {.decision = FSDP_DECIDED_GIVEN, .from = -1, .place = place};
  for (int a = 0; a < s->slices.count; a++) {
    int options = 0;
    for (int l = 0; l <= o->letter_count; l++) {
      bool whole = l < o->letter_count && o->letters[l].is_whole;
      if (whole || !(s->limits[op].letters[l] >> a & 1)) continue;
      options++;
      if (l < o->letter_count) strategy.axes.of[o->letters[l].name - 'a'] |= 1u << a;
    }
    if (options == 0) s->limits[op].letters[o->letter_count] |= 1u << a;
    if (options > 1) return;
  }
  if (place) s->decided[op] = strategy;
}

static fsdp_status limit_operator(const seeder *s, int op) {
  const fsdp_node *node = node_of(s, op);
  const char *place = NULL;
  fsdp_axis_set pinned = 0;
  if (fsdp_op_has(node->kind, FSDP_TRAIT_NORM)) {
    const char *none = NULL;
    fsdp_status status = limit_weights(s, op, &pinned, &none);
    if (status) return status;
    place = limit_norm(s, op);
  } else {
    bool on_pieces = follows_rows(s, node) || (fsdp_op_gathers_keys(node->kind) && !s->parts);
    limit_rows(s, op, on_pieces ? s->pieces : 0);
    follow_input(s, op);
    fsdp_status status = limit_weights(s, op, &pinned, &place);
    if (status) return status;
    const char *stored = limit_output(s, op, &pinned);
    spare_columns(s, op, pinned);
    if (!place) place = stored;
  }
  decide_given(s, op, place);
  return FSDP_OK;
}

// ---- Specs

static void place_param(fsdp_spec *spec, const fsdp_propagation *propagation, fsdp_tensor_axes axes) {
  for (int d = 0; d < spec->dims; d++) {
    spec->dim[d] = (fsdp_dim_axes){0};
    fsdp_dim_axes_cut(&spec->dim[d], fsdp_slice_axes(&propagation->mesh, axes.dim[d]));
  }
  spec->source = FSDP_SPEC_PROPAGATED;
  snprintf(spec->place, sizeof spec->place, "%s", FSDP_COMPLETED_PLACE);
}

static seeder begin(const fsdp_specs *specs, const fsdp_graph *graph, const fsdp_mesh *mesh,
                    fsdp_dtype compute) {
  seeder s = {.specs = specs, .graph = graph, .mesh = mesh, .slices = fsdp_slice_mesh_of(mesh)};
  s.batch = dim_axes(&s, &specs->input.dim[0]);
  s.parts = dim_axes(&s, &specs->input.dim[1]);
  s.pieces = fsdp_slice_axes_of(&s.slices, fsdp_specs_sequence(specs, graph, mesh)) & ~input_axes(&s);
  s.flow = fsdp_dataflow_of_graph(graph, fsdp_slices(&s.slices, s.batch), compute);
  return s;
}

bool fsdp_specs_are_open(const fsdp_specs *specs, const fsdp_graph *graph, const fsdp_mesh *mesh) {
  bool open = false;
  for (int p = 0; p < graph->param_count; p++) open |= specs->params[p].source == FSDP_SPEC_DEFAULT;
  if (!open) return false;
  const seeder s = begin(specs, graph, mesh, FSDP_F32);
  bool others = (((1u << s.slices.count) - 1) & ~input_axes(&s)) != 0;
  open = false;
  for (int o = 0; o < s.flow->operator_count && others; o++) {
    const fsdp_operator *op = &s.flow->operators[o];
    for (int i = 0; i < op->input_count && !open; i++) {
      int param = param_of(graph, s.flow, &op->operands[i]);
      open = param >= 0 && !has_line(&s, param) && is_cuttable(op, &op->operands[i]);
    }
  }
  fsdp_dataflow_destroy(s.flow);
  return open;
}

fsdp_status fsdp_seeds_propagate(const fsdp_specs *specs, const fsdp_graph *graph, const fsdp_mesh *mesh,
                                 fsdp_dtype compute, fsdp_propagation **propagation, fsdp_error *error) {
  seeder s = begin(specs, graph, mesh, compute);
  size_t count = (size_t)s.flow->operator_count;
  s.limits = fsdp_alloc_zeroed(count + 1, sizeof *s.limits);
  s.decided = fsdp_alloc_zeroed(count + 1, sizeof *s.decided);
  s.error = error;
  *propagation = NULL;
  fsdp_status status = FSDP_OK;
  for (int o = 0; o < s.flow->operator_count && !status; o++) status = limit_operator(&s, o);
  if (!status) status = fsdp_propagate_within(s.flow, &s.slices, s.limits, s.decided, propagation, error);
  free(s.limits);
  free(s.decided);
  if (status)
    fsdp_dataflow_destroy(s.flow);
  else
    (*propagation)->own_flow = s.flow;
  return status;
}

fsdp_status fsdp_specs_complete(fsdp_specs *specs, const fsdp_graph *graph, const fsdp_mesh *mesh,
                                fsdp_dtype compute, fsdp_propagation **propagation, fsdp_error *error) {
  fsdp_status status = fsdp_seeds_propagate(specs, graph, mesh, compute, propagation, error);
  const fsdp_dataflow *flow = status ? NULL : (*propagation)->flow;
  for (int o = 0; !status && o < flow->operator_count; o++) {
    const fsdp_operator *op = &flow->operators[o];
    for (int i = 0; i < op->input_count; i++) {
      const int param = param_of(graph, flow, &op->operands[i]);
      const bool open = param >= 0 && specs->params[param].source <= FSDP_SPEC_PROPAGATED;
      if (open && is_cuttable(op, &op->operands[i]))
        place_param(&specs->params[param], *propagation,
                    fsdp_operand_axes(op, i, &(*propagation)->operators[o]));
    }
  }
  return status;
}
