// Sizes on one rank.
#include "runtime/plan/layout/cut.h"
#include "runtime/plan/layout/partition_internal.h"

#include <string.h>

int64_t partition_share(const partitioner *p, int64_t count, fsdp_axis_set axes) {
  int64_t ranks = fsdp_mesh_group_size(p->mesh, axes);
  return (count + ranks - 1) / ranks;
}

void partition_cut(const partitioner *p, const column_blocks *blocks, fsdp_axis_set axes, fsdp_cut *cut) {
  *cut = (fsdp_cut){.block_count = blocks->count, .group_axes = axes};
  memcpy(cut->blocks, blocks->blocks, sizeof cut->blocks);
  if (!blocks->has_heads || p->axes->axis < 0) return;
  fsdp_axis_set replica = 1u << (p->axes->axis + 1);
  cut->group_axes = axes & ~replica;
  for (int b = 0; b < blocks->count; b++)
    if (blocks->blocks[b].items > 1) cut->item_axes = axes & replica;
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
static void localise_heads(const partitioner *p, fsdp_axis_set axes, fsdp_op_attrs *attrs) {
  const column_blocks q = {
      .count = 1, .blocks = {{attrs->kv_heads, attrs->heads / attrs->kv_heads, 1}}, .has_heads = true};
  fsdp_cut cut;
  partition_cut(p, &q, axes, &cut);
  attrs->heads = fsdp_cut_local_size(&cut, p->mesh);
  attrs->kv_heads = partition_share(p, attrs->kv_heads, cut.group_axes);
}

// The pieces of each sequence that a rank has.
static void localise_rows(const partitioner *p, const assignment *a, fsdp_node *node) {
  const fsdp_rows *rows = &p->rows;
  int64_t pieces = rows->pieces / fsdp_mesh_group_size(p->mesh, a->rows);
  node->attrs.seq = pieces * rows->piece;
  node->attrs.piece = pieces == 1 ? 0 : rows->piece;
}

// What an op knows of positions: those of all rows of a rank, which are not cut in pieces.
static void localise_positions(const partitioner *p, fsdp_node *node) {
  node->attrs.chunk = p->rows.chunk;
  node->first_index = p->rows.first;
  node->second_index = p->rows.second;
}

void partition_localise(const partitioner *p, const assignment *a, fsdp_node *node) {
  fsdp_op_attrs *attrs = &node->attrs;
  fsdp_axis_set heads = assigned(a, 'h') | assigned(a, 'g'), v = assigned(a, 'v');
  localise_rows(p, a, node);
  if (fsdp_op_letter_find(fsdp_op_letters_of(node->kind), 't')) localise_positions(p, node);
  localise_heads(p, heads, attrs);
  attrs->channels = partition_share(p, attrs->channels, assigned(a, 'c'));
  attrs->intermediate = partition_share(p, attrs->intermediate, assigned(a, 'f'));
  if (v) {
    int64_t whole = attrs->vocabulary;
    attrs->vocabulary = partition_share(p, whole, v);
    attrs->extent = whole;
    node->first_index = fsdp_affine_of_place(p->mesh, v, 0, attrs->vocabulary);
  }
}
