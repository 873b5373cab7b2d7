// Sizes on one rank.
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/mesh/cut.h"
#include "runtime/plan/sharding/partition_internal.h"

#include <math.h>
#include <string.h>

int64_t partition_share(const partitioner *p, int64_t count, fsdp_axis_set axes) {
  int64_t ranks = fsdp_mesh_group_size(p->mesh, axes);
  return (count + ranks - 1) / ranks;
}

fsdp_cut partition_cut(const partitioner *p, const column_blocks *blocks, fsdp_axis_set axes) {
  fsdp_cut cut = {.block_count = blocks->count, .group_axes = axes};
  memcpy(cut.blocks, blocks->blocks, sizeof cut.blocks);
  if (!blocks->has_heads || p->axes->axis < 0) return cut;
  fsdp_axis_set replica = 1u << (p->axes->axis + 1);
  cut.group_axes = axes & ~replica;
  for (int b = 0; b < blocks->count; b++)
    if (blocks->blocks[b].items > 1) cut.item_axes = axes & replica;
  return cut;
}

// ---- The blocks of columns

// The blocks of an operand's last dimension, by its letters. False: a letter says nothing about items.
static bool blocks_of(const fsdp_op_attrs *attrs, const fsdp_op_operand *operand, column_blocks *out) {
  const fsdp_op_dim *dim = &operand->dims[operand->dim_count - 1];
  if (operand->dim_count < 2 || dim->is_slice) return false;
  *out = (column_blocks){.count = dim->block_count};
  for (int b = 0; b < dim->block_count; b++) {
    const char *letters = dim->blocks[b].letters;
    int64_t heads = letters[0] == 'h' || letters[0] == 'g', K = attrs->kv_heads;
    if (!letters[0] || letters[0] == 'i' || letters[0] == 'o') return false;
    out->has_heads |= heads;
    out->blocks[b] = heads ? (fsdp_cut_block){K, letters[0] == 'h' ? attrs->heads / K : 1,
                                              letters[1] ? attrs->head_dim : 1}
                           : (fsdp_cut_block){fsdp_op_letter_size(attrs, letters[0], 0), 1, 1};
  }
  return true;
}

void partition_find_columns(partitioner *p) {
  for (int n = 0; n < p->graph->forward_count; n++) {
    const fsdp_node *node = &p->graph->forward[n];
    const fsdp_op_letters *op = fsdp_op_letters_of(node->kind);
    if (node->weight_count) continue;
    for (int o = 0; o < node->operand_count; o++) {
      column_blocks *columns = &p->columns[node->operands[o].value];
      column_blocks found;
      // A product's input may be any columns; those that its maker or another reader names win.
      if (blocks_of(&node->attrs, &op->operands[o], &found) && !columns->count) *columns = found;
    }
  }
  for (int v = 0; v < p->value_count; v++) {
    const fsdp_value *value = &p->graph->values[v];
    if (!p->columns[v].count && value->dims == 2)
      p->columns[v] = (column_blocks){.count = 1, .blocks = {{value->shape[1], 1, 1}}};
  }
}

// ---- Attributes

// Heads: key/value heads over the axes that cut them, and of each its query heads over replicas.
static void localise_heads(const partitioner *p, fsdp_axis_set axes, fsdp_node *node) {
  fsdp_op_attrs *attrs = &node->attrs;
  const column_blocks q = {
      .count = 1, .blocks = {{attrs->kv_heads, attrs->heads / attrs->kv_heads, 1}}, .has_heads = true};
  const fsdp_cut cut = partition_cut(p, &q, axes);
  attrs->heads = fsdp_cut_local_size(&cut, p->mesh);
  attrs->kv_heads = partition_share(p, attrs->kv_heads, cut.group_axes);
  if (!fsdp_op_gathers_keys(node->kind)) return;
  attrs->head_group = q.blocks[0].items;
  node->first_head = fsdp_affine_of_place(p->mesh, cut.group_axes, 0, attrs->kv_heads * attrs->head_group);
  const fsdp_affine item =
      fsdp_affine_of_place(p->mesh, cut.item_axes, 0, partition_share(p, attrs->head_group, cut.item_axes));
  for (int axis = 0; axis < FSDP_MESH_AXES_MAX; axis++) node->first_head.stride[axis] += item.stride[axis];
}

// The pieces of each sequence that a rank has.
static void localise_rows(const partitioner *p, const fsdp_op_strategy *a, fsdp_node *node) {
  const fsdp_rows *rows = &p->rows;
  const fsdp_axis_set cut = fsdp_strategy_axes(a, 't') & ~p->decisions->dispatch;
  int64_t pieces = rows->pieces / fsdp_mesh_group_size(p->mesh, cut);
  node->attrs.seq = pieces * rows->piece;
  node->attrs.piece = pieces == 1 ? 0 : rows->piece;
}

// What an op knows of positions: those of all rows of a rank, which are not cut in pieces.
static void localise_positions(const partitioner *p, fsdp_node *node) {
  node->attrs.chunk = p->rows.chunk;
  node->first_index = p->rows.first;
  node->second_index = p->rows.second;
  if (node->attrs.documents) node->attrs.documents = p->rows.parts * p->rows.local_seq;
}

// Routed rows of the first wave: so many times as are sent to a rank's experts if each gets as many.
static int64_t first_wave(const fsdp_graph *graph, const fsdp_op_attrs *attrs) {
  const double balanced =
      (double)(attrs->batch * attrs->seq * attrs->slots) * (double)attrs->experts / (double)attrs->extent;
  const double planned = ceil(graph->expert_capacity * balanced);
  if (graph->expert_capacity <= 0 || planned >= (double)attrs->arrivals) return attrs->arrivals;
  return fsdp_max_i64(1, (int64_t)planned);
}

// The experts of a rank, the rows of all ranks that have others, and the most that these can be sent.
static void localise_experts(const partitioner *p, fsdp_axis_set axes, fsdp_node *node) {
  fsdp_op_attrs *attrs = &node->attrs;
  if (!axes) return;
  attrs->extent = attrs->experts;
  attrs->experts = partition_share(p, attrs->experts, axes);
  attrs->batch *= fsdp_mesh_group_size(p->mesh, axes);
  attrs->arrivals = attrs->batch * attrs->seq * fsdp_min_i64(attrs->slots, attrs->experts);
  node->first_index = fsdp_affine_of_place(p->mesh, axes, 0, attrs->experts);
  if (fsdp_op_letter_find(fsdp_op_letters_of(node->kind), 'u')) attrs->routed = first_wave(p->graph, attrs);
}

void partition_localise(const partitioner *p, const fsdp_op_strategy *a, fsdp_node *node) {
  fsdp_op_attrs *attrs = &node->attrs;
  fsdp_axis_set heads = fsdp_strategy_axes(a, 'h') | fsdp_strategy_axes(a, 'g'),
                v = fsdp_strategy_axes(a, 'v');
  localise_rows(p, a, node);
  if (fsdp_op_letter_find(fsdp_op_letters_of(node->kind), 't')) localise_positions(p, node);
  localise_heads(p, heads, node);
  localise_experts(p, fsdp_strategy_axes(a, 'u'), node);
  attrs->channels = partition_share(p, attrs->channels, fsdp_strategy_axes(a, 'c'));
  attrs->intermediate = partition_share(p, attrs->intermediate, fsdp_strategy_axes(a, 'f'));
  if (v) {
    int64_t whole = attrs->vocabulary;
    attrs->vocabulary = partition_share(p, whole, v);
    attrs->extent = whole;
    node->first_index = fsdp_affine_of_place(p->mesh, v, 0, attrs->vocabulary);
  }
}

// ---- Values

value_spread *partition_spread(partitioner *p, int value) {
  if (value >= p->spread_capacity) {
    int capacity = 2 * value + 64;
    p->spread = fsdp_realloc(p->spread, (size_t)capacity * sizeof *p->spread);
    for (int v = p->spread_capacity; v < capacity; v++) p->spread[v] = (value_spread){0};
    p->spread_capacity = capacity;
  }
  return &p->spread[value];
}

fsdp_value_axes partition_axes(partitioner *p, int value) {
  const value_spread *spread = partition_spread(p, value);
  return (fsdp_value_axes){spread->rows, spread->columns};
}

// Axes over which what the node reads is a sum, and stays one.
static fsdp_axis_set carried_sums(partitioner *p, const fsdp_node *node) {
  const fsdp_op_letters *op = fsdp_op_letters_of(node->kind);
  fsdp_axis_set sums = 0;
  for (int o = 0; o < node->operand_count; o++)
    if (op->operands[fsdp_node_row_operand(node, o)].is_linear)
      sums |= partition_spread(p, node->operands[o].value)->partial;
  return sums;
}

void partition_place_outputs(partitioner *p, const fsdp_node *node, const fsdp_op_strategy *a) {
  const fsdp_op_letters *op = fsdp_op_letters_of(node->kind);
  const fsdp_axis_set carried = carried_sums(p, node);
  for (int o = 0; o < node->operand_count; o++) {
    int value = node->operands[o].value;
    fsdp_value *v = &p->graph->values[value];
    if (node->operands[o].access != FSDP_WRITE || v->role != FSDP_VALUE_ACTIVATION) continue;
    int row = fsdp_node_row_operand(node, o);
    const fsdp_op_operand *operand = &op->operands[row];
    const fsdp_value_axes made = fsdp_strategy_operand(a, operand);
    *partition_spread(p, value) = (value_spread){.rows = made.rows,
                                                 .columns = made.columns,
                                                 .partial = carried | fsdp_strategy_partial(a, op, row),
                                                 .block = node->block,
                                                 .blocks = &p->columns[value]};
    const char rows = operand->dims[0].blocks[0].letters[0];
    v->local[0] = rows == 'u' || rows == 'a' ? fsdp_op_letter_size(&node->attrs, rows, 0)
                                             : node->attrs.batch * node->attrs.seq;
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
