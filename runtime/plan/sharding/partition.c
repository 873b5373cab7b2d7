#include "runtime/plan/sharding/partition.h"

#include "runtime/base/check.h"
#include "runtime/plan/mesh/cut.h"
#include "runtime/plan/sharding/partition_internal.h"

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
static fsdp_axis_set lacking(const fsdp_op_letters *op, const fsdp_op_operand *operand,
                             const fsdp_op_strategy *a) {
  fsdp_axis_set axes = 0;
  for (int i = 0; i < op->letter_count; i++)
    if (!has_letter(op, operand, op->letters[i].name)) axes |= fsdp_strategy_axes(a, op->letters[i].name);
  bool has_rows = has_letter(op, operand, 'n') || has_letter(op, operand, 't');
  return has_rows ? axes : axes | fsdp_strategy_axes(a, 't');
}

// ---- Parameters

static fsdp_axis_set spec_axes(const partitioner *p, int param, int dim) {
  return fsdp_factored_axes(p->axes, &p->specs->params[param].dim[dim]);
}

static fsdp_axis_set zero_axes(const partitioner *p) {
  return p->decisions->batch | p->decisions->parts;
}

static fsdp_status fail_param(partitioner *p, int param, fsdp_axis_set axes, const char *what) {
  char names[FSDP_MESH_TEXT_BYTES];
  const char *place = p->specs->params[param].place;
  return fsdp_fail(p->error, FSDP_ERR_INPUT, "%s: %s: %s over axis %s", *place ? place : "--sharding",
                   p->graph->params[param].name, what, fsdp_mesh_print_axes(p->mesh, axes, names));
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
    for (; b < all->count && left >= fsdp_cut_block_size(&all->blocks[b]); b++) {
      own.blocks[own.count++] = all->blocks[b];
      left -= fsdp_cut_block_size(&all->blocks[b]);
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
  const fsdp_axis_set said = spec_axes(p, v->param, dim) & (~zero_axes(p) | axes);
  if (said != axes)
    return fail_param(
        p, v->param, axes ? axes : said,
        "weights that read one input, and their biases, are cut alike: cut this one, too, in its "
        "outputs");
  if (!axes) return FSDP_OK;
  fsdp_cut cut = partition_cut(p, blocks, axes);
  cut.dim = dim;
  if (param->cut.block_count) {
    if (param->cut.dim == dim && param->cut.group_axes == cut.group_axes &&
        param->cut.item_axes == cut.item_axes)
      return FSDP_OK; // tied: its other use
    return fail_param(p, v->param, axes, "it is cut twice, in different ways: cut one dimension in one way");
  }
  cut.outer_axes = param->cut.outer_axes;
  param->cut = cut;
  v->local_numel = fsdp_cut_local_shape(&cut, p->mesh, v->dims, v->shape, v->local);
  return FSDP_OK;
}

// Cuts a parameter of a linear node.
static fsdp_status cut_linear(partitioner *p, const fsdp_node *node, int index, const fsdp_op_strategy *a) {
  const fsdp_param *weight = &p->graph->params[p->graph->values[node->weights[index]].param];
  column_blocks outputs = output_blocks(p, node, index);
  fsdp_status status =
      cut_param(p, node->weights[index], weight->transposed, &outputs, fsdp_strategy_axes(a, 'o'));
  if (!status)
    status = cut_param(p, node->weights[index], !weight->transposed, &p->columns[node->operands[0].value],
                       fsdp_strategy_axes(a, 'i'));
  if (!status && node->bias_count)
    status = cut_param(p, node->biases[index], 0, &outputs, fsdp_strategy_axes(a, 'o'));
  return status;
}

// Cuts the experts of a stack. Those of a rank may be cut inside, too.
static void cut_experts(partitioner *p, int value, fsdp_axis_set axes) {
  fsdp_value *v = &p->graph->values[value];
  fsdp_cut *cut = &p->graph->params[v->param].cut;
  if (!axes || cut->outer_axes) return;
  cut->outer_axes = axes;
  v->local_numel = fsdp_cut_local_shape(cut, p->mesh, v->dims, v->shape, v->local);
}

static fsdp_status cut_plain(partitioner *p, const fsdp_node *node, int o, const fsdp_op_strategy *a) {
  const fsdp_op_operand *operand = &fsdp_op_letters_of(node->kind)->operands[o];
  const int value = node->operands[o].value;
  fsdp_status status = FSDP_OK;
  for (int d = 0; d < operand->dim_count && !status; d++) {
    const fsdp_op_dim *dim = &operand->dims[d];
    if (fsdp_node_stacks_experts(node, o, d)) {
      cut_experts(p, value, fsdp_strategy_axes(a, 'e'));
      continue;
    }
    column_blocks blocks = {.count = dim->block_count};
    for (int b = 0; b < dim->block_count; b++)
      blocks.blocks[b] =
          (fsdp_cut_block){fsdp_op_letter_size(&node->attrs, dim->blocks[b].letters[0], 0), 1, 1};
    status = cut_param(p, value, d, &blocks, fsdp_strategy_axes(a, dim->blocks[0].letters[0]));
  }
  return status;
}

// The ranks' gradients are summands over axes that cut the op, but not the parameter.
static void note_partial(partitioner *p, int value, const fsdp_op_strategy *a) {
  fsdp_axis_set all = 0;
  for (int i = 0; i < 26; i++) all |= a->of[i];
  const fsdp_cut *cut = &p->graph->params[p->graph->values[value].param].cut;
  fsdp_axis_set held = fsdp_cut_axes(cut);
  p->graph->values[value].partial |= all & ~held & ~zero_axes(p);
}

// ---- Nodes

static bool is_param(const partitioner *p, int value) {
  return p->graph->values[value].role == FSDP_VALUE_PARAM;
}

static bool is_activation(const partitioner *p, int value) {
  return p->graph->values[value].role == FSDP_VALUE_ACTIVATION;
}

static fsdp_status convert_input(partitioner *p, fsdp_node *node, int o, const fsdp_op_strategy *a) {
  const fsdp_op_letters *op = fsdp_op_letters_of(node->kind);
  const fsdp_op_operand *operand = &op->operands[fsdp_node_row_operand(node, o)];
  int old = node->operands[o].value, value = p->current[old];
  const value_spread has = *partition_spread(p, value);
  const fsdp_value_axes wanted = fsdp_strategy_operand(a, operand);
  if (operand->is_linear && has.partial) { // summed behind the op
    FSDP_CHECK(has.rows == wanted.rows && has.columns == wanted.columns, "a sum that %s wants otherwise",
               fsdp_op_name(node->kind));
    node->operands[o].value = value;
    return FSDP_OK;
  }
  bool gathers = (has.rows & ~wanted.rows) | (has.columns & ~wanted.columns);
  const bool is_number = p->graph->values[value].dtype != FSDP_VALUE_I32; // else it has no gradient
  int made = partition_convert(p, value, wanted, is_number ? lacking(op, operand, a) : 0, node);
  if (made < 0) return FSDP_ERR_INPUT;
  if (!gathers || node->operands[o].access == FSDP_UPDATE) p->current[old] = made;
  if (!p->is_used[old]) p->first_use[old] = *partition_spread(p, p->current[old]);
  p->is_used[old] = true;
  node->operands[o].value = made;
  return FSDP_OK;
}

// Converts what the node reads: first sums, which belong to what was before.
static fsdp_status convert_inputs(partitioner *p, fsdp_node *node, const fsdp_op_strategy *a) {
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

static fsdp_status cut_params(partitioner *p, const fsdp_node *node, const fsdp_op_strategy *a) {
  fsdp_status status = FSDP_OK;
  for (int w = 0; w < node->weight_count && !status; w++) {
    status = cut_linear(p, node, w, a);
    note_partial(p, node->weights[w], a);
    if (node->bias_count) note_partial(p, node->biases[w], a);
  }
  for (int o = 0; o < node->operand_count && !status; o++) {
    if (!is_param(p, node->operands[o].value)) continue;
    status = cut_plain(p, node, o, a);
    note_partial(p, node->operands[o].value, a);
  }
  return status;
}

static fsdp_status append_node(partitioner *p, fsdp_node node, const fsdp_op_strategy *a) {
  const fsdp_op_attrs whole = node.attrs;
  const bool is_attention = fsdp_op_gathers_keys(node.kind);
  fsdp_status status = cut_params(p, &node, a);
  partition_localise(p, a, &node);
  if (!status && is_attention) status = partition_take_rows(p, &node, a);
  if (status) return status;
  const fsdp_axis_set pieces = fsdp_strategy_axes(a, 't') & ~p->decisions->dispatch;
  if (is_attention && (p->decisions->parts || pieces)) {
    status = partition_context_attention(p, &node, a);
  } else {
    status = convert_inputs(p, &node, a);
    if (!status) partition_place_outputs(p, &node, a);
  }
  if (status) return status;
  *fsdp_graph_forward_node(p->graph, node.kind, node.module, node.block) = node;
  if (is_attention) partition_mask_heads(p, &node, fsdp_strategy_axes(a, 'h'), &whole);
  return FSDP_OK;
}

// The biases of a product that makes partial sums are added once, after them.
static fsdp_status add_biases(partitioner *p, const fsdp_node *product, fsdp_node node, fsdp_axis_set rows) {
  int *y = &p->current[product->operands[1].value];
  const fsdp_op_strategy a = {.of['t' - 'a'] = rows};
  *y = partition_convert(p, *y, (fsdp_value_axes){.rows = rows}, 0, product);
  if (*y < 0) return FSDP_ERR_INPUT;
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
  node.operands[0].value = *y;
  *fsdp_graph_forward_node(p->graph, node.kind, node.module, node.block) = node;
  return FSDP_OK;
}

// Takes the sum of a fused sum and norm by itself, stored as `stored`, and makes `node` the norm alone.
static fsdp_status split_sum(partitioner *p, fsdp_node *node, fsdp_value_axes stored) {
  fsdp_op_remainder norm;
  int h = node->operands[fsdp_node_sum_operand(node, &norm)].value, *current = p->current;
  int *x = &current[node->operands[0].value], delta = node->operands[fsdp_op_added(node->kind)].value;
  int sum = partition_convert(p, current[delta], stored, 0, node);
  *x = partition_convert(p, *x, stored, 0, node);
  if (sum < 0 || *x < 0) return FSDP_ERR_INPUT;
  if (!p->is_used[delta]) p->first_use[delta] = *partition_spread(p, sum);
  p->is_used[delta] = true;
  fsdp_node *n = fsdp_graph_forward_node(p->graph, fsdp_op_move(FSDP_UPDATE), node->module, node->block);
  fsdp_node_operand_add(n, *x, FSDP_READ);
  fsdp_node_operand_add(n, sum, FSDP_UPDATE);
  current[h] = sum;
  partition_spread(p, sum)->as_ruled = true;
  p->graph->values[sum].kept = p->graph->values[h].kept;
  const fsdp_node whole = *node;
  node->kind = norm.kind;
  node->operand_count = 0;
  for (int o = 0; o < norm.operand_count; o++) {
    fsdp_node_operand operand = whole.operands[norm.operands[o]];
    if (operand.value == h) operand.access = FSDP_READ;
    fsdp_node_operand_add(node, operand.value, operand.access);
  }
  return FSDP_OK;
}

// Converts what `node` made to how rules store it. What gathers it for an op is made again for the backward,
// so that what is saved lies as the rule says.
static fsdp_status store(partitioner *p, const fsdp_node *node) {
  for (int o = 0; o < node->operand_count; o++) {
    int value = node->operands[o].value;
    const fsdp_stored_value *stored = &p->decisions->stored[value];
    if (node->operands[o].access != FSDP_WRITE || !stored->is_stored) continue;
    int made = partition_convert(p, p->current[value], stored->axes, 0, node);
    if (made < 0) return FSDP_ERR_INPUT;
    partition_spread(p, made)->as_ruled = true;
    p->current[value] = made;
  }
  return FSDP_OK;
}

// Sums a value where it lies, over axes that cut rows.
static void sum_rows(partitioner *p, const fsdp_node *node, int value, fsdp_axis_set axes) {
  const fsdp_conversion conversion = {
      .axes = axes, .from = FSDP_SPREAD_PARTIAL, .to = FSDP_SPREAD_WHOLE, .gradient = FSDP_SPREAD_WHOLE};
  partition_spread(p, value)->rows = p->decisions->dispatch; // as ops without rows want it
  if (!axes) return;
  fsdp_graph_redistribute(p->graph, p->graph->values[value].module, node->block, &conversion, value, value);
}

// Sums what an op reads of the rows of all ranks where it lies, and says how many have sequences of their
// own. Pieces of these rows are summed in any case.
static void sum_over_tokens(partitioner *p, fsdp_node *node) {
  const bool reads_rows =
      fsdp_op_letter_find(fsdp_op_letters_of(node->kind), 't') != NULL; // not sums of them
  const int sums = p->current[node->operands[0].value], others = p->current[node->operands[1].value];
  const fsdp_axis_set axes = zero_axes(p), pieces = partition_spread(p, sums)->rows & ~axes;
  node->attrs.ranks = fsdp_mesh_group_size(p->mesh, axes);
  if (reads_rows) return;
  sum_rows(p, node, sums, pieces | (node->attrs.aux_of_rank ? 0 : axes));
  sum_rows(p, node, others, pieces);
}

static fsdp_status partition_node(partitioner *p, const fsdp_node *old, const fsdp_decided_op *decided) {
  fsdp_node node = *old, biases;
  if (fsdp_op_has(node.kind, FSDP_TRAIT_OVER_TOKENS)) sum_over_tokens(p, &node);
  fsdp_status status = decided->splits_sum ? split_sum(p, &node, decided->sum) : FSDP_OK;
  bool adds_biases = node.bias_count && fsdp_strategy_axes(&decided->strategy, 'i');
  if (adds_biases) fsdp_node_take_biases(&node, &biases);
  if (!status) status = append_node(p, node, &decided->strategy);
  if (!status) partition_waves(p);
  if (!status && adds_biases) status = add_biases(p, old, biases, decided->biases_rows);
  return status ? status : store(p, old);
}

// ---- The whole graph

// The axes that cut a parameter's experts.
static fsdp_axis_set expert_axes(const partitioner *p, int param) {
  const int value = p->graph->params[param].value;
  if (!p->decisions->dispatch) return 0;
  for (const fsdp_node *n = p->graph->forward; n < p->graph->forward + p->graph->forward_count; n++)
    for (int o = 0; o < n->operand_count; o++)
      if (n->operands[o].value == value && fsdp_node_stacks_experts(n, o, 0)) return p->decisions->dispatch;
  return 0;
}

// Parameters lie flat over the axes of their specs that cut the batch or the input's sequence.
static void place_params(partitioner *p) {
  for (int i = 0; i < p->graph->param_count; i++) {
    fsdp_value *value = &p->graph->values[p->graph->params[i].value];
    const fsdp_axis_set flat = zero_axes(p) & ~expert_axes(p, i);
    for (int d = 0; d < p->graph->params[i].dims; d++) value->flat |= spec_axes(p, i, d) & flat;
  }
}

// Tokens, targets and the like have numbers for each row of a rank, others (starts of documents) for each
// position of its sequences, wherever its rows are.
static void place_inputs(partitioner *p) {
  p->graph->token_axes = zero_axes(p);
  for (int v = 0; v < p->value_count; v++) {
    fsdp_value *value = &p->graph->values[v];
    if (value->role != FSDP_VALUE_INPUT) continue;
    const bool is_whole = fsdp_graph_is_of_sequences(p->graph, v);
    const fsdp_axis_set cut = is_whole ? p->decisions->batch : zero_axes(p);
    const int64_t each = value->numel / (p->graph->batch * p->graph->seq); // numbers of a row
    value->local[0] = p->rows.batch * p->rows.local_seq * (is_whole ? p->rows.parts : 1) * each;
    value->local_numel = value->local[0];
    value->shape[0] = value->numel = value->local[0] * fsdp_mesh_group_size(p->mesh, cut);
  }
}

// ---- What came of it

// A rule is followed if the output lies so anywhere on its way to its first reader.
static void judge_rule(const partitioner *p, fsdp_spec *rule, const value_spread *spread) {
  const fsdp_value_axes asked = fsdp_decisions_stored(p->decisions, p->axes, rule);
  const bool so = !spread->partial && asked.rows == (spread->rows & ~p->decisions->dispatch) &&
                  asked.columns == spread->columns;
  if (so) rule->outcome = FSDP_RULE_FOLLOWED;
  if (!so && rule->outcome == FSDP_RULE_NO_TENSOR) rule->outcome = FSDP_RULE_OTHERWISE;
}

// A module's output lies so on its way to its first reader: a rule is judged by all of `lies`, and without
// one the module's spec says the first.
static void write_output(partitioner *p, fsdp_specs *specs, int module, const value_spread *lies, int count) {
  fsdp_spec *spec = specs->outputs[module];
  if (spec->dims != FSDP_OUTPUT_DIMS) return;
  if (fsdp_specs_rule(p->specs, module)) {
    for (int i = 0; i < count; i++) judge_rule(p, spec, &lies[i]);
    return;
  }
  // Of an axis whose ranks are all replicas of one key/value head, the replicas' half alone is in a set.
  for (int d = 0; d < 2; d++) spec->dim[d] = specs->input.dim[d];
  spec->dim[2] = (fsdp_dim_axes){0};
  fsdp_dim_axes_cut(&spec->dim[1], fsdp_factored_source(p->axes, lies->rows & ~p->decisions->dispatch));
  fsdp_dim_axes_cut(&spec->dim[2], fsdp_factored_source(p->axes, lies->columns));
}

// A value is the module's output.
static void write_value(partitioner *p, fsdp_specs *specs, int module, int value) {
  const value_spread stored = *partition_spread(p, p->current[value]);
  const value_spread lies[] = {p->is_used[value] ? p->first_use[value] : stored, stored,
                               *partition_spread(p, value)};
  write_output(p, specs, module, lies, 3);
}

// The output of the head, and of the whole model, are logits, which no tensor has.
static void judge_logits(const partitioner *p, fsdp_specs *specs, int n) {
  const fsdp_node *node = &p->nodes[n];
  const fsdp_op_strategy *a = &p->decisions->ops[n].strategy;
  const value_spread spread = {.rows = fsdp_strategy_axes(a, 't'), .columns = fsdp_strategy_axes(a, 'v')};
  bool is_head = fsdp_op_letter_find(fsdp_op_letters_of(node->kind), 'v') != NULL;
  for (int o = 0; o < node->operand_count; o++)
    is_head = is_head && p->decisions->output_of[node->operands[o].value] != node->module;
  for (int m = node->module; is_head && m >= 0; m = p->graph->modules[m].parent)
    if (fsdp_specs_rule(specs, m)) judge_rule(p, specs->outputs[m], &spread);
}

// Attention may take its queries in pieces because the line of their product says so.
static void judge_queries(const partitioner *p, fsdp_specs *specs, int n) {
  const fsdp_node *node = &p->nodes[n];
  const fsdp_op_strategy *a = &p->decisions->ops[n].strategy;
  const value_spread spread = {.rows = fsdp_strategy_axes(a, 't'), .columns = fsdp_strategy_axes(a, 'h')};
  if (!fsdp_op_gathers_keys(node->kind)) return;
  const int module = p->graph->values[node->operands[0].value].module;
  if (fsdp_specs_rule(specs, module)) judge_rule(p, specs->outputs[module], &spread);
}

// Writes how outputs lie into the specs of modules that no rule places, so that they print as rules of the
// same placements, and into those that one places whether it is followed.
static void write_outputs(partitioner *p, fsdp_specs *specs) {
  for (int m = 0; m < p->graph->module_count; m++) {
    memcpy(specs->outputs[m][0].asked, specs->outputs[m][0].dim, sizeof specs->outputs[m][0].asked);
    if (fsdp_specs_rule(specs, m)) specs->outputs[m][0].outcome = FSDP_RULE_NO_TENSOR;
  }
  for (int n = 0; n < p->node_count; n++) {
    const fsdp_node *node = &p->nodes[n];
    judge_logits(p, specs, n);
    judge_queries(p, specs, n);
    int added = fsdp_op_added(node->kind);
    // The output of a layer is what the next norm's sum makes of it.
    if (added >= 0) {
      int block = fsdp_graph_layer_of(p->graph, p->graph->values[node->operands[added].value].module);
      fsdp_op_remainder norm;
      int h = node->operands[fsdp_node_sum_operand(node, &norm)].value;
      const value_spread lies[] = {*partition_spread(p, h), *partition_spread(p, p->current[h])};
      if (block >= 0) write_output(p, specs, block, lies, 2);
    }
    for (int o = 0; o < node->operand_count; o++) {
      int value = node->operands[o].value;
      if (node->operands[o].access != FSDP_WRITE || p->decisions->output_of[value] < 0) continue;
      for (int m = p->graph->values[value].module; m >= p->decisions->output_of[value];
           m = p->graph->modules[m].parent)
        write_value(p, specs, m, value);
      for (int w = 1; w < node->weight_count; w++)
        write_value(p, specs, p->graph->params[p->graph->values[node->weights[w]].param].module, value);
    }
  }
  // A rule of an output that is no tensor says nothing if it names no axis beyond the input's.
  for (int m = 0; m < p->graph->module_count; m++) {
    const fsdp_value_axes asked = fsdp_decisions_stored(p->decisions, p->axes, fsdp_specs_rule(specs, m));
    if (specs->outputs[m][0].outcome == FSDP_RULE_NO_TENSOR && !asked.rows && !asked.columns)
      specs->outputs[m][0].outcome = FSDP_RULE_FOLLOWED;
  }
}

fsdp_status fsdp_partition(fsdp_graph *graph, fsdp_specs *specs, const fsdp_mesh *mesh,
                           const fsdp_factored_mesh *axes, fsdp_rows *rows, fsdp_error *error) {
  FSDP_CHECK(graph->backward_count == 0, "a graph with a backward is not partitioned");
  fsdp_decisions *decisions;
  fsdp_status status = fsdp_decisions_make(graph, specs, mesh, axes, &decisions, error);
  if (status) return status;
  size_t values = (size_t)graph->value_count;
  partitioner p = {.graph = graph,
                   .specs = specs,
                   .axes = axes,
                   .mesh = &axes->mesh,
                   .decisions = decisions,
                   .error = error,
                   .current = fsdp_alloc(values * sizeof(int)),
                   .first_use = fsdp_alloc_zeroed(values, sizeof(value_spread)),
                   .is_used = fsdp_alloc_zeroed(values, sizeof(bool)),
                   .columns = fsdp_alloc_zeroed(values, sizeof(column_blocks)),
                   .value_count = graph->value_count};
  p.rows = *rows = fsdp_rows_of(p.mesh, graph->batch, graph->seq, decisions->parts, decisions->pieces);
  for (int v = 0; v < p.value_count; v++) p.current[v] = v;
  partition_find_columns(&p);
  place_params(&p);
  place_inputs(&p);
  fsdp_node *nodes = graph->forward;
  int count = graph->forward_count;
  p.nodes = nodes;
  p.node_count = count;
  graph->forward = NULL;
  graph->forward_count = graph->forward_capacity = 0;
  for (int n = 0; n < count && !status; n++) status = partition_node(&p, &nodes[n], &decisions->ops[n]);
  if (!status) write_outputs(&p, specs);
  if (!status) partition_add_dropout(&p);
  free(nodes);
  free(p.first_use);
  free(p.is_used);
  free(p.current);
  free(p.columns);
  free(p.spread);
  fsdp_decisions_destroy(decisions);
  return status;
}
