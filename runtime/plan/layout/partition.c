#include "runtime/plan/layout/partition.h"

#include "runtime/base/check.h"
#include "runtime/plan/layout/cut.h"
#include "runtime/plan/layout/partition_internal.h"
#include "runtime/plan/layout/placement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- Letters

// Whether an operand has a letter, or one that is sharded together with it.
static bool has_letter(const fsdp_op_letters *op, const fsdp_op_operand *operand, char letter) {
  for (int i = 0; i < op->letter_count; i++) {
    const fsdp_op_letter *l = &op->letters[i];
    const fsdp_op_letter *own = fsdp_op_letter_find(op, letter);
    bool same = l->name == letter || l->with == letter || (own && own->with == l->name);
    if (same && fsdp_op_operand_has(operand, l->name)) return true;
  }
  return false;
}

// Axes over which the gradient of `operand` is a sum of the ranks': those of letters that it lacks.
static fsdp_axis_set lacking(const fsdp_op_letters *op, const fsdp_op_operand *operand, const assignment *a) {
  fsdp_axis_set axes = 0;
  for (int i = 0; i < op->letter_count; i++)
    if (!has_letter(op, operand, op->letters[i].name)) axes |= assigned(a, op->letters[i].name);
  bool has_rows = has_letter(op, operand, 'n') || has_letter(op, operand, 't');
  return has_rows ? axes : axes | a->rows;
}

// The letter that an axis cuts if it cuts an operand's columns; 0: none.
static char column_letter(const fsdp_op_operand *operand) {
  return operand->dim_count < 2 ? 0 : operand->dims[operand->dim_count - 1].blocks[0].letters[0];
}

// The row's operand of a node's operand `o`: linear ops leave their weights and biases out.
static int row_operand(const fsdp_node *node, const fsdp_op_letters *op, int o) {
  if (!node->weight_count) return o;
  int weight = fsdp_op_slice_weight(op), bias = fsdp_op_slice_bias(op), row = 0;
  for (;; row++) {
    if (row == weight || row == bias) continue;
    if (o-- == 0) return row;
  }
}

// ---- Parameters

static fsdp_axis_set spec_axes(const partitioner *p, int param, int dim) {
  return fsdp_factored_axes(p->axes, &p->specs->params[param].dim[dim]);
}

static fsdp_axis_set zero_axes(const partitioner *p) {
  return p->batch | p->parts;
}

static fsdp_status fail_param(partitioner *p, int param, fsdp_axis_set axes, const char *what) {
  char names[FSDP_MESH_TEXT_BYTES];
  const char *place = p->specs->params[param].place;
  return fsdp_fail(p->error, FSDP_ERR_INPUT, "%s: %s: %s over axis %s", *place ? place : "--sharding",
                   p->graph->params[param].name, what, fsdp_mesh_print_axes(p->mesh, axes, names));
}

// Gives the axes that a parameter's spec names to the letters of its dimensions.
static fsdp_status assign_param(partitioner *p, const fsdp_op_letters *op, const fsdp_op_operand *operand,
                                int value, assignment *a) {
  const fsdp_param *param = &p->graph->params[p->graph->values[value].param];
  int index = p->graph->values[value].param;
  for (int d = 0; d < param->dims; d++) {
    fsdp_axis_set axes = spec_axes(p, index, d) & ~zero_axes(p);
    const fsdp_op_dim *dim = &operand->dims[param->transposed ? param->dims - 1 - d : d];
    const fsdp_op_letter *letter = fsdp_op_letter_find(op, dim->blocks[0].letters[0]);
    bool head = op == fsdp_op_letters_of(FSDP_OP_LINEAR_CROSS_ENTROPY) && letter->name == 'v';
    if (!axes) continue;
    if (letter->is_whole && !head)
      return fail_param(
          p, index, axes,
          "its op needs this dimension whole on every rank, so it cannot be cut; use null there, "
          "or an axis that cuts the batch, instead of a cut");
    a->of[letter->name - 'a'] |= axes;
  }
  return FSDP_OK;
}

static int64_t block_size(const fsdp_cut_block *block) {
  return block->groups * block->items * block->width;
}

// The blocks of a product's outputs that weight `index` of the node makes: those that the outputs' reader
// names, or one of single columns.
static column_blocks output_blocks(const partitioner *p, const fsdp_node *node, int index) {
  const column_blocks *all = &p->columns[node->operands[1].value];
  column_blocks own = {.has_heads = all->has_heads};
  int b = 0;
  for (int w = 0; w <= index; w++) {
    const fsdp_param *param = &p->graph->params[p->graph->values[node->weights[w]].param];
    int64_t outputs = param->shape[param->transposed], left = outputs;
    own.count = 0;
    for (; b < all->count && left >= block_size(&all->blocks[b]); b++) {
      own.blocks[own.count++] = all->blocks[b];
      left -= block_size(&all->blocks[b]);
    }
    if (left > 0) own = (column_blocks){.count = 1, .blocks = {{outputs, 1, 1}}};
  }
  return own;
}

// Cuts dimension `dim` of a parameter over `axes`.
static fsdp_status cut_param(partitioner *p, int value, int dim, const column_blocks *blocks,
                             fsdp_axis_set axes) {
  fsdp_graph *g = p->graph;
  fsdp_param *param = &g->params[g->values[value].param];
  fsdp_value *v = &g->values[value];
  fsdp_cut cut;
  if (!axes) return FSDP_OK;
  if ((spec_axes(p, v->param, dim) & ~zero_axes(p)) != axes)
    return fail_param(
        p, v->param, axes,
        "weights that read one input, and their biases, are cut alike: cut this one, too, in its "
        "outputs");
  partition_cut(p, blocks, axes, &cut);
  cut.dim = dim;
  if (param->cut.block_count) {
    if (param->cut.dim == dim && param->cut.group_axes == cut.group_axes &&
        param->cut.item_axes == cut.item_axes)
      return FSDP_OK; // tied: its other use
    return fail_param(p, v->param, axes, "it is cut twice, in different ways: cut one dimension in one way");
  }
  param->cut = cut;
  fsdp_placement_cut(&v->placement, dim, fsdp_cut_axes(&cut));
  v->local_numel = fsdp_cut_local_shape(&cut, p->mesh, v->dims, v->shape, v->local);
  return FSDP_OK;
}

// Cuts a parameter of a linear node.
static fsdp_status cut_linear(partitioner *p, const fsdp_node *node, int index, const assignment *a) {
  const fsdp_param *weight = &p->graph->params[p->graph->values[node->weights[index]].param];
  column_blocks outputs = output_blocks(p, node, index);
  fsdp_status status = cut_param(p, node->weights[index], weight->transposed, &outputs, assigned(a, 'o'));
  if (!status)
    status = cut_param(p, node->weights[index], !weight->transposed, &p->columns[node->operands[0].value],
                       assigned(a, 'i'));
  if (!status && node->bias_count) status = cut_param(p, node->biases[index], 0, &outputs, assigned(a, 'o'));
  return status;
}

static fsdp_status cut_plain(partitioner *p, const fsdp_node *node, const fsdp_op_operand *operand, int value,
                             const assignment *a) {
  fsdp_status status = FSDP_OK;
  for (int d = 0; d < operand->dim_count && !status; d++) {
    char letter = operand->dims[d].blocks[0].letters[0];
    const column_blocks blocks = {.count = 1,
                                  .blocks = {{fsdp_op_letter_size(&node->attrs, letter, 0), 1, 1}}};
    status = cut_param(p, value, d, &blocks, assigned(a, letter));
  }
  return status;
}

// The ranks' gradients are summands over axes that cut the op, but not the parameter.
static void note_partial(partitioner *p, int value, const assignment *a) {
  fsdp_axis_set all = a->rows;
  for (int i = 0; i < 26; i++) all |= a->of[i];
  const fsdp_cut *cut = &p->graph->params[p->graph->values[value].param].cut;
  fsdp_axis_set held = fsdp_cut_axes(cut);
  p->graph->values[value].partial |= all & ~held;
}

// ---- Nodes

static bool is_param(const partitioner *p, int value) {
  return p->graph->values[value].role == FSDP_VALUE_PARAM;
}

static bool is_activation(const partitioner *p, int value) {
  return p->graph->values[value].role == FSDP_VALUE_ACTIVATION;
}

static fsdp_status assign_weights(partitioner *p, const fsdp_node *node, const fsdp_op_letters *op,
                                  assignment *a) {
  fsdp_status status = FSDP_OK;
  int weight = fsdp_op_slice_weight(op), bias = fsdp_op_slice_bias(op);
  for (int w = 0; w < node->weight_count && !status; w++) {
    status = assign_param(p, op, &op->operands[weight], node->weights[w], a);
    if (!status && node->bias_count) status = assign_param(p, op, &op->operands[bias], node->biases[w], a);
  }
  for (int o = 0; o < node->operand_count && !status; o++)
    if (is_param(p, node->operands[o].value))
      status = assign_param(p, op, &op->operands[o], node->operands[o].value, a);
  return status;
}

// An op without matrices follows the columns that it is given, if it can work on a part of them.
static void follow_columns(partitioner *p, const fsdp_node *node, const fsdp_op_letters *op, assignment *a) {
  if (node->weight_count) return;
  for (int o = 0; o < node->operand_count; o++) {
    int value = node->operands[o].value;
    if (!is_activation(p, value) || !(node->operands[o].access & FSDP_READ)) continue;
    char name = column_letter(&op->operands[o]);
    const fsdp_op_letter *letter = name ? fsdp_op_letter_find(op, name) : NULL;
    if (letter && !letter->is_whole && strchr("hgf", name))
      a->of[name - 'a'] |= partition_spread(p, p->current[value])->columns;
    return;
  }
}

bool fsdp_partition_is_norm(fsdp_op_kind kind) {
  return kind == FSDP_OP_RMSNORM || kind == FSDP_OP_ADD_RMSNORM || kind == FSDP_OP_LAYERNORM ||
         kind == FSDP_OP_ADD_LAYERNORM;
}

bool fsdp_partition_works_on_pieces(const fsdp_node *node) {
  return node->weight_count || node->kind == FSDP_OP_SWIGLU || node->kind == FSDP_OP_GELU ||
         node->kind == FSDP_OP_QK_NORM;
}

// Norms work on pieces if the residual stream is to lie so; other ops if their input does, over the axes
// outside those that cut a letter: what these had inside them would move.
static void assign_rows(partitioner *p, const fsdp_node *node, assignment *a) {
  if (fsdp_partition_is_norm(node->kind)) {
    a->rows = partition_norm_rows(p, node);
  } else if (fsdp_partition_works_on_pieces(node)) {
    fsdp_axis_set used = 0;
    for (int i = 0; i < 26; i++) used |= a->of[i];
    a->rows = partition_spread(p, p->current[node->operands[0].value])->rows;
    used &= a->rows;
    if (used) a->rows &= (used & -used) - 1;
  }
}

static value_spread wanted_spread(const fsdp_op_operand *operand, const assignment *a) {
  char letter = column_letter(operand);
  return (value_spread){.rows = a->rows, .columns = letter ? assigned(a, letter) : 0};
}

// What a node writes lies as its letters say; sums over letters that an output lacks are partial.
static void place_outputs(partitioner *p, const fsdp_node *node, const assignment *a) {
  const fsdp_op_letters *op = fsdp_op_letters_of(node->kind);
  for (int o = 0; o < node->operand_count; o++) {
    int value = node->operands[o].value;
    if (node->operands[o].access != FSDP_WRITE || !is_activation(p, value)) continue;
    int row = row_operand(node, op, o);
    const fsdp_op_operand *operand = &op->operands[row];
    fsdp_value *v = &p->graph->values[value];
    value_spread spread = wanted_spread(operand, a);
    spread.block = node->block;
    spread.blocks = &p->columns[value];
    for (int i = 0; i < op->letter_count; i++)
      if (fsdp_op_contracts(op, row, op->letters[i].name)) spread.partial |= assigned(a, op->letters[i].name);
    *partition_spread(p, value) = spread;
    v->local[0] = node->attrs.batch * node->attrs.seq;
    if (node->weight_count) {
      v->local[1] = 0;
      for (int w = 0; w < node->weight_count; w++)
        v->local[1] += fsdp_graph_outputs(p->graph, node->weights[w]);
      v->local_numel = v->local[0] * v->local[1];
    } else {
      v->local_numel = fsdp_op_operand_numel(&node->attrs, operand, 0);
      if (v->dims > 1) v->local[1] = v->local_numel / v->local[0];
    }
  }
}

static fsdp_status convert_input(partitioner *p, fsdp_node *node, int o, const assignment *a) {
  const fsdp_op_letters *op = fsdp_op_letters_of(node->kind);
  const fsdp_op_operand *operand = &op->operands[row_operand(node, op, o)];
  int old = node->operands[o].value, value = p->current[old];
  value_spread has = *partition_spread(p, value), wanted = wanted_spread(operand, a);
  bool gathers = (has.rows & ~wanted.rows) | (has.columns & ~wanted.columns);
  int made = partition_convert(p, value, wanted, lacking(op, operand, a), node);
  if (made < 0) return FSDP_ERR_INPUT;
  if (!gathers || node->operands[o].access == FSDP_UPDATE) p->current[old] = made;
  if (!p->is_used[old]) p->first_use[old] = *partition_spread(p, p->current[old]);
  p->is_used[old] = true;
  node->operands[o].value = made;
  return FSDP_OK;
}

// Converts what the node reads: first sums, which belong to what was before.
static fsdp_status convert_inputs(partitioner *p, fsdp_node *node, const assignment *a) {
  bool is_sum[FSDP_OP_MAX_OPERANDS] = {false};
  fsdp_status status = FSDP_OK;
  for (int o = 0; o < node->operand_count; o++)
    is_sum[o] = is_activation(p, node->operands[o].value) &&
                partition_spread(p, p->current[node->operands[o].value])->partial;
  for (int sums = 1; sums >= 0; sums--)
    for (int o = 0; o < node->operand_count && !status; o++)
      if (is_sum[o] == (sums == 1) && is_activation(p, node->operands[o].value) &&
          (node->operands[o].access & FSDP_READ))
        status = convert_input(p, node, o, a);
  return status;
}

static fsdp_status cut_params(partitioner *p, const fsdp_node *node, const fsdp_op_letters *op,
                              const assignment *a) {
  fsdp_status status = FSDP_OK;
  for (int w = 0; w < node->weight_count && !status; w++) status = cut_linear(p, node, w, a);
  for (int o = 0; o < node->operand_count && !status; o++)
    if (is_param(p, node->operands[o].value))
      status = cut_plain(p, node, &op->operands[o], node->operands[o].value, a);
  for (int w = 0; w < node->weight_count && !status; w++) {
    note_partial(p, node->weights[w], a);
    if (node->bias_count) note_partial(p, node->biases[w], a);
  }
  for (int o = 0; o < node->operand_count && !status; o++)
    if (is_param(p, node->operands[o].value)) note_partial(p, node->operands[o].value, a);
  return status;
}

// Whether axes cut the inputs of a product, which then makes partial sums.
static bool contracts_cut(const partitioner *p, const fsdp_node *node) {
  for (int w = 0; w < node->weight_count; w++) {
    int index = p->graph->values[node->weights[w]].param;
    if (spec_axes(p, index, !p->graph->params[index].transposed) & ~zero_axes(p)) return true;
  }
  return false;
}

static fsdp_status append_node(partitioner *p, fsdp_node node) {
  assignment a = {0};
  const fsdp_op_attrs whole = node.attrs;
  const fsdp_op_letters *op = fsdp_op_letters_of(node.kind);
  fsdp_status status = assign_weights(p, &node, op, &a);
  if (status) return status;
  follow_columns(p, &node, op, &a);
  assign_rows(p, &node, &a);
  status = cut_params(p, &node, op, &a);
  partition_localise(p, &a, &node);
  if (status) return status;
  bool is_attention = node.kind == FSDP_OP_ATTENTION;
  if (is_attention) status = partition_take_rows(p, &node);
  if (status) return status;
  if (is_attention && partition_needs_context(p, p->current[node.operands[0].value])) {
    node.operands[0].value = p->current[node.operands[0].value];
    status = partition_context_attention(p, &node, &a);
  } else {
    status = convert_inputs(p, &node, &a);
  }
  if (status) return status;
  place_outputs(p, &node, &a);
  *fsdp_graph_forward_node(p->graph, node.kind, node.module, node.block) = node;
  if (is_attention) partition_mask_heads(p, &node, assigned(&a, 'h') | assigned(&a, 'g'), &whole);
  return FSDP_OK;
}

// The rows that the first reader of a value takes.
static fsdp_axis_set rows_of_reader(const partitioner *p, const fsdp_node *maker, int value) {
  for (const fsdp_node *n = maker + 1; n < p->nodes + p->node_count; n++)
    for (int o = 0; o < n->operand_count; o++)
      if (n->operands[o].value == value && fsdp_partition_is_norm(n->kind)) return partition_norm_rows(p, n);
  return 0;
}

// The biases of a product that makes partial sums are added once, after them.
static fsdp_status add_biases(partitioner *p, const fsdp_node *product) {
  int old = product->operands[1].value, *y = &p->current[old];
  assignment a = {.rows = rows_of_reader(p, product, old)};
  *y = partition_convert(p, *y, (value_spread){.rows = a.rows}, 0, product);
  if (*y < 0) return FSDP_ERR_INPUT;
  fsdp_node node = *product;
  node.kind = FSDP_OP_ADD_BIAS;
  node.weight_count = node.operand_count = 0;
  for (int b = 0; b < node.bias_count; b++) {
    int param = p->graph->values[node.biases[b]].param;
    fsdp_axis_set cut = spec_axes(p, param, 0) & ~zero_axes(p);
    if (cut)
      return fail_param(
          p, param, cut,
          "its product's inputs are cut, and it is added to whole sums: use null instead of a cut");
    note_partial(p, node.biases[b], &a);
  }
  partition_localise(p, &a, &node);
  fsdp_node_operand_add(&node, *y, FSDP_UPDATE);
  *fsdp_graph_forward_node(p->graph, node.kind, node.module, node.block) = node;
  return FSDP_OK;
}

static fsdp_status partition_node(partitioner *p, const fsdp_node *old) {
  fsdp_node node = *old;
  fsdp_status status = partition_split_sum(p, &node);
  bool adds_bias = node.kind == FSDP_OP_LINEAR_BIAS && contracts_cut(p, &node);
  if (adds_bias) {
    node.kind = FSDP_OP_LINEAR;
    node.bias_count = 0;
  }
  if (!status) status = append_node(p, node);
  if (!status && adds_bias) status = add_biases(p, old);
  return status ? status : partition_store(p, old);
}

// ---- The whole graph

// Parameters lie flat over the axes of their specs that cut the batch or the input's sequence.
static void place_params(partitioner *p) {
  for (int i = 0; i < p->graph->param_count; i++) {
    fsdp_placement *placement = &p->graph->values[p->graph->params[i].value].placement;
    for (int d = 0; d < p->graph->params[i].dims; d++) placement->flat |= spec_axes(p, i, d) & zero_axes(p);
  }
}

// The axes of `dim` cut rows, in its order.
static void cut_rows(const partitioner *p, fsdp_placement *placement, const fsdp_dim_axes *dim) {
  for (int i = 0; i < dim->count; i++) {
    const fsdp_dim_axes one = {.count = 1, .axes = {dim->axes[i]}};
    fsdp_placement_cut(placement, 0, fsdp_factored_axes(p->axes, &one));
  }
}

// Tokens and targets: a row for each position of a rank, of all sequences.
static void place_inputs(partitioner *p) {
  for (int v = 0; v < p->value_count; v++) {
    fsdp_value *value = &p->graph->values[v];
    if (value->role != FSDP_VALUE_INPUT) continue;
    value->local[0] = value->local_numel = p->rows.batch * p->rows.local_seq;
    cut_rows(p, &value->placement, &p->specs->input.dim[0]);
    cut_rows(p, &value->placement, &p->specs->input.dim[1]);
    value->shape[0] = value->numel = value->local[0] * fsdp_mesh_group_size(p->mesh, zero_axes(p));
  }
}

// The axes, beside those of the input, that any module's output has on its sequence.
static fsdp_axis_set find_pieces(const partitioner *p) {
  fsdp_axis_set pieces = 0;
  for (int m = 0; m < p->graph->module_count; m++)
    if (p->specs->modules[m].dims > 1)
      pieces |= fsdp_factored_axes(p->axes, &p->specs->modules[m].dim[1]) & ~zero_axes(p);
  return pieces;
}

// Activations are moved neither between parts of the batch nor between those of the input's sequence.
static fsdp_status check_outputs(const partitioner *p, const fsdp_mesh *mesh) {
  for (int m = 0; m < p->graph->module_count; m++) {
    const fsdp_spec *spec = &p->specs->modules[m];
    char text[FSDP_SPEC_TEXT_BYTES], axes[FSDP_MESH_TEXT_BYTES], path[FSDP_NAME_BYTES];
    if (!spec->place[0]) continue;
    bool has_batch = fsdp_dim_axes_equal(&spec->dim[0], &p->specs->input.dim[0], mesh);
    bool has_parts =
        spec->dims != FSDP_OUTPUT_DIMS || !(p->parts & ~fsdp_factored_axes(p->axes, &spec->dim[1]));
    fsdp_graph_module_path(p->graph, m, path);
    fsdp_spec_print(spec, mesh, text);
    if (!has_batch)
      return fsdp_fail(p->error, FSDP_ERR_INPUT,
                       "%s: \"%s\": %s differs from the batch, which lies over %s: sequences are not moved "
                       "between ranks; use the batch's axes, in its order, for dimension 0",
                       spec->place, path, text, fsdp_mesh_print_axes(p->mesh, p->batch, axes));
    if (!has_parts)
      return fsdp_fail(
          p->error, FSDP_ERR_INPUT,
          "%s: \"%s\": %s does not cut the sequence over %s, as the input does: positions are not "
          "moved between ranks; name the input's axes in dimension 1",
          spec->place, path, text, fsdp_mesh_print_axes(p->mesh, p->parts, axes));
  }
  return FSDP_OK;
}

fsdp_status fsdp_partition(fsdp_graph *graph, fsdp_specs *specs, const fsdp_mesh *mesh,
                           const fsdp_factored_mesh *axes, fsdp_rows *rows, fsdp_error *error) {
  FSDP_CHECK(graph->backward_count == 0, "a graph with a backward is not partitioned");
  size_t values = (size_t)graph->value_count;
  partitioner p = {.graph = graph,
                   .specs = specs,
                   .axes = axes,
                   .mesh = &axes->mesh,
                   .batch = fsdp_factored_axes(axes, &specs->input.dim[0]),
                   .parts = fsdp_factored_axes(axes, &specs->input.dim[1]),
                   .error = error,
                   .current = fsdp_alloc(values * sizeof(int)),
                   .output_of = fsdp_alloc(values * sizeof(int)),
                   .first_use = fsdp_alloc_zeroed(values, sizeof(value_spread)),
                   .is_used = fsdp_alloc_zeroed(values, sizeof(bool)),
                   .columns = fsdp_alloc_zeroed(values, sizeof(column_blocks)),
                   .value_count = graph->value_count};
  p.pieces = find_pieces(&p);
  p.rows = *rows = fsdp_rows_of(p.mesh, graph->batch, graph->seq, p.parts, p.pieces);
  for (int v = 0; v < p.value_count; v++) p.current[v] = v;
  partition_find_columns(&p);
  partition_find_outputs(&p);
  place_params(&p);
  place_inputs(&p);
  fsdp_node *nodes = graph->forward;
  int count = graph->forward_count;
  p.nodes = nodes;
  p.node_count = count;
  graph->forward = NULL;
  graph->forward_count = graph->forward_capacity = 0;
  fsdp_status status = check_outputs(&p, mesh);
  for (int n = 0; n < count && !status; n++) status = partition_node(&p, &nodes[n]);
  if (!status) partition_write_outputs(&p, specs);
  free(nodes);
  free(p.first_use);
  free(p.is_used);
  free(p.current);
  free(p.output_of);
  free(p.columns);
  free(p.spread);
  return status;
}
