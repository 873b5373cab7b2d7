// How outputs are stored: what a user's rules say of a module's output, beside what its op makes.
//
// An output that a rule places is converted as soon as it is made, unless only a sum reads it. What gathers
// it again for an op is made again for the backward, so what is saved lies as the rule says. If the residual
// stream is stored in columns, its sums are taken of columns, and only the norm's input is gathered.
#include "runtime/base/check.h"
#include "runtime/plan/layout/partition_internal.h"
#include "runtime/plan/layout/tensor_preset.h"

#include <stdlib.h>
#include <string.h>

static bool is_block(const fsdp_graph *graph, int module) {
  return strcmp(graph->modules[module].class_name, graph->block_class) == 0;
}

// The rule of a user for a module's output, NULL: none.
static const fsdp_spec *rule_of(const fsdp_specs *specs, int module) {
  const fsdp_spec *spec = &specs->modules[module];
  bool given = spec->place[0] && strcmp(spec->place, FSDP_PRESET_TENSOR_PLACE) != 0;
  return given && spec->dims > 2 ? spec : NULL;
}

// By module: the last node of it or below it, -1: none. The caller frees it.
static int *last_nodes(const fsdp_graph *graph) {
  int *last = fsdp_alloc((size_t)graph->module_count * sizeof *last);
  for (int m = 0; m < graph->module_count; m++) last[m] = -1;
  for (int n = 0; n < graph->forward_count; n++)
    for (int m = graph->forward[n].module; m >= 0; m = graph->modules[m].parent) last[m] = n;
  return last;
}

// The index of the operand that the sum writes, and the norm that remains if it is there.
static int sum_operand(const fsdp_node *node, fsdp_op_remainder *norm) {
  for (int o = 0; o < node->operand_count; o++) {
    bool kept[FSDP_OP_MAX_OPERANDS] = {false};
    kept[o] = true;
    if (node->operands[o].access == FSDP_WRITE && fsdp_op_remainder_of(node->kind, kept, norm)) return o;
  }
  FSDP_CHECK(false, "%s is no sum", fsdp_op_name(node->kind));
}

// The outermost module below a layer whose output node `n` makes, which is the last one of the module, -1:
// none. `last`: by module, its last node.
static int output_module(const fsdp_graph *graph, const int *last, int n) {
  int module = graph->forward[n].module;
  if (last[module] != n) return -1;
  for (;;) {
    int parent = graph->modules[module].parent;
    if (parent <= 0 || is_block(graph, parent) || last[parent] != n) return module;
    module = parent;
  }
}

void partition_find_outputs(partitioner *p) {
  const fsdp_graph *g = p->graph;
  int *last = last_nodes(g);
  for (int v = 0; v < p->value_count; v++) p->output_of[v] = -1;
  for (int n = 0; n < g->forward_count; n++) {
    const fsdp_node *node = &g->forward[n];
    fsdp_op_remainder norm;
    int sum = fsdp_op_added(node->kind) >= 0 ? sum_operand(node, &norm) : -1;
    for (int o = 0; o < node->operand_count; o++) {
      int value = node->operands[o].value;
      if (o == sum || node->operands[o].access != FSDP_WRITE || g->values[value].dims != 2) continue;
      if (g->values[value].role == FSDP_VALUE_ACTIVATION) p->output_of[value] = output_module(g, last, n);
    }
  }
  free(last);
}

// The layer that a module lies in, -1: none.
static int block_of(const fsdp_graph *graph, int module) {
  while (module >= 0 && !is_block(graph, module)) module = graph->modules[module].parent;
  return module;
}

// What of a spec is no axis of the input.
static value_spread stored(const partitioner *p, const fsdp_spec *spec) {
  fsdp_axis_set input = p->batch | p->parts;
  return (value_spread){.rows = fsdp_factored_axes(p->axes, &spec->dim[1]) & ~input,
                        .columns = fsdp_factored_axes(p->axes, &spec->dim[2]) & ~input};
}

// How rules store the output that a value is. False: no rule does.
static bool stored_spread(const partitioner *p, int value, value_spread *spread) {
  int module = p->output_of[value];
  const fsdp_spec *spec = module >= 0 ? rule_of(p->specs, module) : NULL;
  // Without a rule for the outermost module, one inside it may have one.
  for (int m = p->graph->values[value].module; module >= 0 && !spec && m > module;
       m = p->graph->modules[m].parent)
    spec = rule_of(p->specs, m);
  if (spec) *spread = stored(p, spec);
  return spec != NULL;
}

// By the rule of the layer whose output is added.
const fsdp_spec *fsdp_partition_residual_rule(const fsdp_graph *graph, const fsdp_specs *specs,
                                              const fsdp_node *sum) {
  int added = fsdp_op_added(sum->kind);
  int block = added < 0 ? -1 : block_of(graph, graph->values[sum->operands[added].value].module);
  return block < 0 ? NULL : rule_of(specs, block);
}

// The same of the residual stream.
static bool residual_spread(const partitioner *p, const fsdp_node *sum, value_spread *spread) {
  const fsdp_spec *spec = fsdp_partition_residual_rule(p->graph, p->specs, sum);
  if (spec) *spread = stored(p, spec);
  return spec != NULL;
}

// Whether rules store all that a product of several weights makes alike: its own is the first weight's.
static bool ruled_alike(const partitioner *p, const fsdp_node *node, value_spread spread) {
  for (int w = 1; w < node->weight_count; w++) {
    const fsdp_spec *spec =
        rule_of(p->specs, p->graph->params[p->graph->values[node->weights[w]].param].module);
    value_spread other = spec ? stored(p, spec) : (value_spread){0};
    if (other.rows != spread.rows || other.columns != spread.columns) return false;
  }
  return true;
}

// Whether a value has another reader than a sum: then the backward reads it.
static bool is_saved(const partitioner *p, int value) {
  for (int n = 0; n < p->node_count; n++)
    for (int o = 0; o < p->nodes[n].operand_count; o++)
      if (p->nodes[n].operands[o].value == value && (p->nodes[n].operands[o].access & FSDP_READ) &&
          o != fsdp_op_added(p->nodes[n].kind))
        return true;
  return false;
}

fsdp_axis_set partition_norm_rows(const partitioner *p, const fsdp_node *norm) {
  const fsdp_spec *spec = &p->specs->modules[norm->module];
  value_spread residual = {0};
  residual_spread(p, norm, &residual);
  fsdp_axis_set rows = spec->dims > 1 ? fsdp_factored_axes(p->axes, &spec->dim[1]) : 0;
  return (rows | residual.rows) & p->pieces;
}

fsdp_status partition_store(partitioner *p, const fsdp_node *node) {
  for (int o = 0; o < node->operand_count; o++) {
    int value = node->operands[o].value;
    value_spread wanted;
    if (node->operands[o].access != FSDP_WRITE || p->output_of[value] < 0) continue;
    if (!stored_spread(p, value, &wanted) || !ruled_alike(p, node, wanted)) continue;
    value_spread has = *partition_spread(p, p->current[value]);
    bool differs = has.rows != wanted.rows || has.columns != wanted.columns;
    if (!has.partial && (!differs || !is_saved(p, value))) continue;
    int made = partition_convert(p, p->current[value], wanted, 0, node);
    if (made < 0) return FSDP_ERR_INPUT;
    partition_spread(p, made)->as_ruled = true;
    p->current[value] = made;
  }
  return FSDP_OK;
}

fsdp_status partition_split_sum(partitioner *p, fsdp_node *node) {
  int added = fsdp_op_added(node->kind);
  value_spread residual;
  if (!residual_spread(p, node, &residual) || !residual.columns) return FSDP_OK;
  fsdp_op_remainder norm;
  int h = node->operands[sum_operand(node, &norm)].value, *current = p->current;
  int *x = &current[node->operands[0].value];
  int delta = node->operands[added].value, sum = partition_convert(p, current[delta], residual, 0, node);
  *x = partition_convert(p, *x, residual, 0, node);
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

// ---- What came of it

// Appends the axes of a set, as the mesh before it was factored has them.
static void append_axes(const partitioner *p, fsdp_axis_set axes, fsdp_dim_axes *dim) {
  for (int a = 0; a < p->mesh->count; a++) {
    bool replica = p->axes->axis >= 0 && a == p->axes->axis + 1;
    if (!(axes >> a & 1) || replica) continue;
    dim->axes[dim->count++] = (signed char)(p->axes->axis >= 0 && a > p->axes->axis ? a - 1 : a);
  }
}

static void write_output(const partitioner *p, fsdp_specs *specs, int module, value_spread spread) {
  fsdp_spec *spec = &specs->modules[module];
  if (rule_of(p->specs, module) || spec->dims != FSDP_OUTPUT_DIMS) return;
  for (int d = 0; d < 2; d++) spec->dim[d] = specs->input.dim[d];
  spec->dim[2] = (fsdp_dim_axes){0};
  append_axes(p, spread.rows, &spec->dim[1]);
  append_axes(p, spread.columns, &spec->dim[2]);
}

void partition_write_outputs(const partitioner *p, fsdp_specs *specs) {
  for (int n = 0; n < p->node_count; n++) {
    const fsdp_node *node = &p->nodes[n];
    int added = fsdp_op_added(node->kind);
    // The output of a layer is what the next norm's sum makes of it.
    if (added >= 0) {
      int block = block_of(p->graph, p->graph->values[node->operands[added].value].module);
      fsdp_op_remainder norm;
      int h = node->operands[sum_operand(node, &norm)].value;
      if (block >= 0) write_output(p, specs, block, *partition_spread((partitioner *)p, p->current[h]));
    }
    for (int o = 0; o < node->operand_count; o++) {
      int value = node->operands[o].value;
      if (node->operands[o].access != FSDP_WRITE || p->output_of[value] < 0) continue;
      value_spread spread =
          p->is_used[value] ? p->first_use[value] : *partition_spread((partitioner *)p, p->current[value]);
      for (int m = p->graph->values[value].module; m >= p->output_of[value]; m = p->graph->modules[m].parent)
        write_output(p, specs, m, spread);
      for (int w = 1; w < node->weight_count; w++)
        write_output(p, specs, p->graph->params[p->graph->values[node->weights[w]].param].module, spread);
    }
  }
}
