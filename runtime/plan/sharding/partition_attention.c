// Attention where a rank has a part of the sequence: keys and values of all positions come from their own
// rows.
//
//   q|k|v of the rank's rows ──► take_columns ──► k|v ──► gathered ──► k|v of all positions
//            └──────────────────────────────────────────────────────► context_attention
//
// If queries alone are cut, k|v need no gathering, and q is a slice:
//
//   q|k|v of all rows ──► take_columns ──► k|v ──────────► context_attention
//            └─────────► the rank's rows of q ───────────────────┘
#include "runtime/base/check.h"
#include "runtime/plan/sharding/partition_internal.h"

#include <stdio.h>

fsdp_status partition_take_rows(partitioner *p, const fsdp_node *attention, const fsdp_op_strategy *a) {
  int *qkv = &p->current[attention->operands[0].value];
  const fsdp_axis_set dispatch = p->decisions->dispatch;
  fsdp_value_axes wanted = partition_axes(p, *qkv);
  if (p->decisions->parts || wanted.rows != fsdp_strategy_axes(a, 't')) wanted.rows = dispatch;
  *qkv = partition_convert(p, *qkv, wanted, 0, attention);
  return *qkv < 0 ? FSDP_ERR_INPUT : FSDP_OK;
}

// The columns of k and v, as a value of its own.
static int take_keys(partitioner *p, const fsdp_node *attention, int qkv) {
  fsdp_graph *g = p->graph;
  const fsdp_op_attrs *attrs = &attention->attrs;
  const fsdp_value source = g->values[qkv];
  int64_t columns = 2 * attrs->kv_heads * attrs->head_dim;
  int kv = fsdp_graph_value(g, FSDP_VALUE_ACTIVATION, source.dtype, attention->module, "kv", 2,
                            (int64_t[]){source.shape[0], columns});
  g->values[kv].local[0] = source.local[0];
  g->values[kv].local_numel = source.local[0] * columns;
  g->values[kv].regathered = true; // from q|k|v, which the backward reads too
  fsdp_node *n = fsdp_graph_forward_node(g, FSDP_PLAN_OP_TAKE_COLUMNS, attention->module, attention->block);
  n->attrs = (fsdp_op_attrs){.batch = 1,
                             .seq = source.local[0],
                             .in_features = columns,
                             .out_features = columns,
                             .out_offset = attrs->heads * attrs->head_dim,
                             .out_stride = source.local[1]};
  fsdp_node_operand_add(n, qkv, FSDP_READ);
  fsdp_node_operand_add(n, kv, FSDP_WRITE);
  value_spread spread = *partition_spread(p, qkv);
  spread.blocks = NULL;
  *partition_spread(p, kv) = spread;
  return kv;
}

// Gathers k and v over the parts of the input's sequence: like pieces, one after the other.
static int gather_keys(partitioner *p, const fsdp_node *attention, int kv, fsdp_axis_set axes) {
  partition_spread(p, kv)->rows |= axes;
  fsdp_value_axes wanted = partition_axes(p, kv);
  wanted.rows &= ~axes;
  kv = partition_convert(p, kv, wanted, axes, attention);
  if (kv >= 0) p->graph->values[kv].regathered = true;
  return kv;
}

// The rank's rows of the columns of q, which `pieces` cut, as a value of its own.
static int take_queries(partitioner *p, const fsdp_node *attention, int qkv, fsdp_axis_set pieces) {
  fsdp_graph *g = p->graph;
  fsdp_value_axes wanted = partition_axes(p, qkv);
  wanted.rows = pieces | p->decisions->dispatch;
  int q = partition_convert(p, qkv, wanted, 0, attention);
  fsdp_conversion *slice = &g->forward[g->forward_count - 1].conversion;
  FSDP_CHECK(q >= 0 && slice->from == FSDP_SPREAD_WHOLE && slice->to == FSDP_SPREAD_ROWS,
             "queries are not whole where their rows are taken");
  fsdp_value *made = &g->values[q];
  snprintf(made->name, sizeof made->name, "q");
  slice->used_columns = attention->attrs.heads * attention->attrs.head_dim;
  made->shape[1] = made->local[1] = slice->used_columns;
  made->numel = made->shape[0] * made->shape[1];
  made->local_numel = made->local[0] * made->local[1];
  partition_spread(p, q)->blocks = NULL;
  return q;
}

fsdp_status partition_context_attention(partitioner *p, fsdp_node *node, const fsdp_op_strategy *a) {
  const fsdp_rows *rows = &p->rows;
  const fsdp_axis_set parts = p->decisions->parts, dispatch = p->decisions->dispatch,
                      pieces = fsdp_strategy_axes(a, 't') & ~dispatch;
  int qkv = p->current[node->operands[0].value], kv = take_keys(p, node, qkv);
  const fsdp_axis_set lies = partition_spread(p, qkv)->rows & ~dispatch;
  bool slices = pieces && !lies; // q|k|v is whole
  FSDP_CHECK(slices || lies == pieces, "q|k|v does not lie as its strategy says");
  if (!slices) kv = gather_keys(p, node, kv, parts | pieces);
  if (kv < 0) return FSDP_ERR_INPUT;
  int q = qkv;
  if (slices) {
    kv = partition_convert(p, kv, partition_axes(p, kv), pieces, node);
    q = take_queries(p, node, qkv, pieces);
  }
  node->attrs.out_stride = p->graph->values[q].local[1];
  node->attrs.kv_seq = rows->parts * rows->local_seq;
  node->attrs.kv_parts = rows->parts;
  node->attrs.kv_piece = rows->piece;
  if (pieces) node->first_index = fsdp_affine_of_place(p->mesh, pieces, 0, node->attrs.seq);
  fsdp_node_take_context(node, q, kv);
  partition_place_outputs(p, node, a);
  return FSDP_OK;
}

int partition_first_output(const fsdp_node *node) {
  int o = 0;
  while (node->operands[o].access != FSDP_WRITE) o++;
  return node->operands[o].value;
}

void partition_mask_heads(partitioner *p, const fsdp_node *attention, fsdp_axis_set heads,
                          const fsdp_op_attrs *whole) {
  if (p->axes->axis < 0 || !(heads >> (p->axes->axis + 1) & 1)) return;
  const fsdp_axis_set replicas = 1u << (p->axes->axis + 1);
  int64_t items = whole->heads / whole->kv_heads, held = partition_share(p, items, replicas);
  int o = partition_first_output(attention);
  if (items % fsdp_mesh_group_size(p->mesh, replicas) == 0) return;
  fsdp_node *n =
      fsdp_graph_forward_node(p->graph, FSDP_PLAN_OP_MASK_COLUMNS, attention->module, attention->block);
  n->attrs = (fsdp_op_attrs){.batch = attention->attrs.batch,
                             .seq = attention->attrs.seq,
                             .in_features = attention->attrs.heads * whole->head_dim,
                             .extent = items * whole->head_dim};
  n->first_index = fsdp_affine_of_place(p->mesh, replicas, 0, held * whole->head_dim);
  fsdp_node_operand_add(n, o, FSDP_UPDATE);
}
