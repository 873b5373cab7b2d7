// The head with cross-entropy over a vocabulary that is cut.
//
//   for each chunk of rows    head_logits     the rank's columns of the logits, and of each row their
//                                             maximum, sum of exponentials and the target's logit
//                             all_gather      these three numbers, 12 bytes a row and rank
//                             head_loss       evaluation: the loss
//                             head_backward   training: the loss, and the gradients
//
// No rank ever holds a row of all logits. Every rank combines the numbers in the order of the ranks, so all
// have the same loss.
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/layout/placement.h"
#include "runtime/plan/program/lower.h"

#define STATS_BYTES 12

// Operands of linear_cross_entropy and of its backward, as ops.def has them.
enum { X, WEIGHT, TARGETS, COUNT, LOSS, D_X, D_WEIGHT, OPERANDS };

typedef struct head {
  lowering *l;
  const fsdp_node *node;
  fsdp_operand operands[OPERANDS];
  fsdp_axis_set axes; // that cut the vocabulary
  int64_t rows, ranks;
} head;

bool lower_is_cut_head(const fsdp_node *node) {
  bool is_head =
      node->kind == FSDP_OP_LINEAR_CROSS_ENTROPY || node->kind == FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD;
  return is_head && node->attrs.extent > 0;
}

// Rows [first, first + rows) of an operand of all rows.
static fsdp_operand rows_of(const head *h, int operand, int64_t first, int64_t rows) {
  fsdp_operand range = h->operands[operand];
  int64_t row_bytes = range.size_bytes / h->rows;
  range.offset.base += first * row_bytes;
  range.size_bytes = rows * row_bytes;
  return range;
}

static void insert(const head *h, fsdp_op_kind kind, const fsdp_op_attrs *attrs, const fsdp_operand *operands,
                   int count) {
  fsdp_node node = *h->node;
  node.kind = kind;
  lower_op(h->l, &node, attrs, operands, count);
}

static void lower_chunk(const head *h, int64_t first, int64_t rows) {
  step_builder *s = h->l->s;
  bool backward = h->node->kind == FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD;
  fsdp_op_attrs attrs = h->node->attrs;
  attrs.batch = 1;
  attrs.seq = rows;
  attrs.ranks = h->ranks;
  attrs.weight_frozen = false;
  int logits = lower_temporary(h->l, h->node, "logits", 4 * rows * attrs.vocabulary);
  int stats = lower_temporary(h->l, h->node, "stats", STATS_BYTES * rows);
  int all = lower_temporary(h->l, h->node, "all_stats", STATS_BYTES * rows * h->ranks);
  fsdp_operand x = rows_of(h, X, first, rows), targets = rows_of(h, TARGETS, first, rows);
  insert(h, FSDP_OP_HEAD_LOGITS, &attrs,
         (fsdp_operand[]){x, h->operands[WEIGHT], targets, make_whole(s, logits, FSDP_F32, FSDP_WRITE),
                          make_whole(s, stats, FSDP_F32, FSDP_WRITE)},
         5);
  fsdp_operand gathered[2] = {make_whole(s, stats, FSDP_F32, FSDP_READ),
                              make_whole(s, all, FSDP_F32, FSDP_WRITE)};
  lower_mark(h->l, h->node,
             make_collective(s, FSDP_INSTR_ALL_GATHER, h->axes, FSDP_STREAM_TENSOR, -1, gathered));
  gathered[1].access = FSDP_READ;
  fsdp_operand loss = h->operands[LOSS];
  if (first > 0) loss.access = FSDP_UPDATE;
  if (!backward) {
    insert(h, FSDP_OP_HEAD_LOSS, &attrs, (fsdp_operand[]){gathered[1], targets, h->operands[COUNT], loss}, 4);
    return;
  }
  attrs.weight_frozen = h->node->attrs.weight_frozen;
  fsdp_operand d_weight = h->operands[D_WEIGHT];
  if (first > 0) d_weight.access = FSDP_UPDATE;
  insert(h, FSDP_OP_HEAD_BACKWARD, &attrs,
         (fsdp_operand[]){gathered[1], targets, h->operands[COUNT], x, h->operands[WEIGHT], loss,
                          make_whole(s, logits, FSDP_F32, FSDP_UPDATE), rows_of(h, D_X, first, rows),
                          d_weight},
         9 - attrs.weight_frozen);
}

void lower_cut_head(lowering *l, const fsdp_node *node) {
  const fsdp_graph *graph = l->s->graph;
  head h = {.l = l, .node = node};
  FSDP_CHECK(node->operand_count <= OPERANDS, "%d operands of the head", node->operand_count);
  for (int o = 0; o < node->operand_count; o++) h.operands[o] = lower_operand(l, &node->operands[o]);
  const fsdp_param *weight = &graph->params[graph->values[node->operands[WEIGHT].value].param];
  h.axes = weight->cut.group_axes;
  h.ranks = fsdp_mesh_group_size(&l->s->program->mesh, h.axes);
  h.rows = node->attrs.batch * node->attrs.seq;
  fsdp_dtype gradient = node->operand_count > D_WEIGHT ? h.operands[D_WEIGHT].dtype : FSDP_F32;
  int64_t chunk = fsdp_op_chunk_rows(l->s->config->backend->device, h.rows, node->attrs.vocabulary, gradient);
  for (int64_t first = 0; first < h.rows; first += chunk)
    lower_chunk(&h, first, fsdp_min_i64(chunk, h.rows - first));
}
