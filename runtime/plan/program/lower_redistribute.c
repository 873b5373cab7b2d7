// Changes of placement as instructions.
//
//   rows cut -> whole        all_gather
//   columns cut -> whole     all_gather into parts one after the other, join_columns
//   partial -> whole         all_reduce
//   partial -> rows cut      reduce_scatter
//   partial -> columns cut   split_columns into parts one after the other, reduce_scatter
//   whole -> rows cut        a copy of the rank's rows; take_columns if some columns alone are used
//   whole -> columns cut     take_columns
//
// Rows that are cut are one range (rows.h), so no copy packs or unpacks them.
#include "runtime/base/check.h"
#include "runtime/plan/program/lower.h"

#include <string.h>

typedef struct conversion {
  lowering *l;
  const fsdp_node *node;
  const fsdp_conversion *c;
  fsdp_stream stream;
  int64_t ranks;
  fsdp_op_attrs attrs; // of the ops that move columns
} conversion;

static int64_t columns_of(const conversion *v, const fsdp_node_operand *operand) {
  const fsdp_value *value = &v->l->s->graph->values[operand->value];
  return value->dims > 1 ? value->local[1] : 1;
}

static void collective(const conversion *v, fsdp_instr_kind kind, const fsdp_operand *operands) {
  lower_mark(v->l, v->node, make_collective(v->l->s, kind, v->c->axes, v->stream, -1, operands));
}

static void op_at(const conversion *v, fsdp_op_kind kind, const fsdp_op_attrs *attrs, fsdp_affine first,
                  fsdp_operand from, fsdp_operand to) {
  fsdp_node node = *v->node;
  node.kind = kind;
  node.first_index = first;
  node.second_index = (fsdp_affine){0};
  from.access = FSDP_READ;
  lower_op(v->l, &node, attrs, (fsdp_operand[]){from, to}, 2);
}

static void op(const conversion *v, fsdp_op_kind kind, const fsdp_op_attrs *attrs, fsdp_operand from,
               fsdp_operand to) {
  op_at(v, kind, attrs, (fsdp_affine){0}, from, to);
}

// The operand that is written, through a temporary if it is to be added to.
static fsdp_operand target(const conversion *v, fsdp_operand to) {
  if (to.access == FSDP_WRITE) return to;
  int tensor = lower_temporary(v->l, v->node, "contribution", to.size_bytes);
  return make_whole(v->l->s, tensor, to.dtype, FSDP_WRITE);
}

static void add_contribution(const conversion *v, fsdp_operand made, fsdp_operand to) {
  if (made.tensor == to.tensor) return;
  to.access = FSDP_UPDATE;
  op(v, fsdp_op_move(FSDP_UPDATE), &(fsdp_op_attrs){0}, made, to);
}

// The parts of all ranks, one after the other.
static fsdp_operand parts(const conversion *v, fsdp_operand one) {
  int tensor = lower_temporary(v->l, v->node, "parts", one.size_bytes * v->ranks);
  return make_whole(v->l->s, tensor, one.dtype, FSDP_WRITE);
}

// Of `rows` rows: columns that are used alone, between a matrix of their own and operand `wide`.
static fsdp_op_attrs used_columns(const conversion *v, int64_t rows, int wide) {
  return (fsdp_op_attrs){.batch = 1,
                         .seq = rows,
                         .in_features = v->c->used_columns,
                         .out_features = v->c->used_columns,
                         .out_stride = columns_of(v, &v->node->operands[wide])};
}

// Gathers the rows of the columns that are used alone; something else writes the others.
static void gather_used(const conversion *v, fsdp_operand from, fsdp_operand to) {
  FSDP_CHECK(to.access == FSDP_WRITE, "columns of rows that are there are not gathered");
  fsdp_operand all = parts(v, from);
  collective(v, FSDP_INSTR_ALL_GATHER, (fsdp_operand[]){from, all});
  const fsdp_op_attrs attrs = used_columns(v, v->attrs.seq * v->ranks, 1);
  op(v, FSDP_PLAN_OP_PUT_COLUMNS, &attrs, all, to);
}

static void gather(const conversion *v, fsdp_operand from, fsdp_operand to) {
  if (v->c->from == FSDP_SPREAD_COLUMNS) {
    fsdp_operand all = parts(v, from);
    collective(v, FSDP_INSTR_ALL_GATHER, (fsdp_operand[]){from, all});
    op(v, FSDP_PLAN_OP_JOIN_COLUMNS, &v->attrs, all, to);
    return;
  }
  if (v->c->used_columns) {
    gather_used(v, from, to);
    return;
  }
  fsdp_operand made = target(v, to);
  collective(v, FSDP_INSTR_ALL_GATHER, (fsdp_operand[]){from, made});
  add_contribution(v, made, to);
}

static void scatter(const conversion *v, fsdp_operand from, fsdp_operand to) {
  fsdp_operand made = target(v, to);
  if (v->c->to == FSDP_SPREAD_COLUMNS) {
    fsdp_operand all = parts(v, to);
    op(v, FSDP_PLAN_OP_SPLIT_COLUMNS, &v->attrs, from, all);
    from = all;
  }
  collective(v, FSDP_INSTR_REDUCE_SCATTER, (fsdp_operand[]){from, made});
  add_contribution(v, made, to);
}

static void slice(const conversion *v, fsdp_operand from, fsdp_operand to) {
  if (v->c->to == FSDP_SPREAD_COLUMNS) {
    fsdp_operand made = target(v, to);
    fsdp_affine first = fsdp_affine_of_place(&v->l->s->program->mesh, v->c->axes, 0, v->attrs.in_features);
    op_at(v, FSDP_PLAN_OP_TAKE_COLUMNS, &v->attrs, first, from, made);
    add_contribution(v, made, to);
    return;
  }
  from.size_bytes /= v->ranks;
  from.offset = fsdp_affine_of_place(&v->l->s->program->mesh, v->c->axes, 0, from.size_bytes);
  if (v->c->used_columns) {
    FSDP_CHECK(to.access == FSDP_WRITE, "columns of rows are not added");
    const fsdp_op_attrs attrs = used_columns(v, v->attrs.seq / v->ranks, 0);
    op(v, FSDP_PLAN_OP_TAKE_COLUMNS, &attrs, from, to);
    return;
  }
  op(v, fsdp_op_move(to.access), &(fsdp_op_attrs){0}, from, to);
}

// The operand as the op of a kind that only moves data wants it.
void lower_redistribute(lowering *l, const fsdp_node *node) {
  const fsdp_conversion *c = &node->conversion;
  const fsdp_value *first = &l->s->graph->values[node->operands[0].value];
  conversion v = {.l = l, .node = node, .c = c};
  bool context = l->s->graph->token_axes & c->axes;
  v.stream = context ? FSDP_STREAM_CONTEXT : FSDP_STREAM_TENSOR;
  v.ranks = fsdp_mesh_group_size(&l->s->program->mesh, c->axes);
  if (c->from == c->to) return; // only its gradient is converted
  if (node->operand_count == 1) {
    fsdp_operand sum = lower_operand(l, &node->operands[0]);
    collective(&v, FSDP_INSTR_ALL_REDUCE, &sum);
    return;
  }
  const fsdp_node_operand *cut = &node->operands[c->from == FSDP_SPREAD_COLUMNS ? 0 : 1];
  v.attrs = (fsdp_op_attrs){.batch = 1,
                            .seq = first->local[0],
                            .ranks = v.ranks,
                            .in_features = columns_of(&v, cut),
                            .out_features = c->columns,
                            .out_stride = c->columns};
  fsdp_operand from = lower_operand(l, &node->operands[0]), to = lower_operand(l, &node->operands[1]);
  if (c->from == FSDP_SPREAD_PARTIAL) {
    FSDP_CHECK(c->to != FSDP_SPREAD_WHOLE, "a sum out of place");
    scatter(&v, from, to);
  } else if (c->to == FSDP_SPREAD_WHOLE) {
    gather(&v, from, to);
  } else {
    slice(&v, from, to);
  }
}
