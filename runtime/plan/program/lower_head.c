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
#include "runtime/plan/program/lower.h"

#define STATS_BYTES 12

// Operands of linear_cross_entropy and of its backward, as ops.def has them.
// Behind them, `learned` if there is one.
enum { X, WEIGHT, TARGETS, COUNT, LOSS, D_X, D_WEIGHT, LEARNED, OPERANDS };

typedef struct head {
  lowering *l;
  const fsdp_node *node;
  fsdp_operand operands[OPERANDS];
  fsdp_axis_set axes; // that cut the vocabulary
  int64_t rows, ranks;
} head;

bool lower_is_cut_head(const fsdp_node *node) {
  const fsdp_op_letter *vocabulary = fsdp_op_letter_find(fsdp_op_letters_of(node->kind), 'v');
  return vocabulary && vocabulary->is_whole && node->attrs.extent > 0;
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
  bool backward = fsdp_op_phase_of(h->node->kind) == FSDP_OP_IN_BACKWARD;
  fsdp_op_attrs attrs = h->node->attrs;
  attrs.batch = 1;
  attrs.seq = rows;
  attrs.ranks = h->ranks;
  attrs.weight_frozen = false;
  int logits = lower_temporary(h->l, h->node, "logits", 4 * rows * attrs.vocabulary);
  int stats = lower_temporary(h->l, h->node, "stats", STATS_BYTES * rows);
  int all = lower_temporary(h->l, h->node, "all_stats", STATS_BYTES * rows * h->ranks);
  fsdp_operand x = rows_of(h, X, first, rows), targets = rows_of(h, TARGETS, first, rows), learned = {0};
  if (attrs.loss_of_documents) learned = rows_of(h, LEARNED, first, rows);
  insert(h, FSDP_PLAN_OP_HEAD_LOGITS, &attrs,
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
    insert(h, FSDP_PLAN_OP_HEAD_LOSS, &attrs,
           (fsdp_operand[]){gathered[1], targets, h->operands[COUNT], loss, learned},
           4 + attrs.loss_of_documents);
    return;
  }
  attrs.weight_frozen = h->node->attrs.weight_frozen;
  fsdp_operand d_weight = h->operands[D_WEIGHT];
  if (first > 0) d_weight.access = FSDP_UPDATE;
  if (attrs.weight_frozen) d_weight = learned; // it moves up
  insert(h, FSDP_PLAN_OP_HEAD_BACKWARD, &attrs,
         (fsdp_operand[]){gathered[1], targets, h->operands[COUNT], x, h->operands[WEIGHT], loss,
                          make_whole(s, logits, FSDP_F32, FSDP_UPDATE), rows_of(h, D_X, first, rows),
                          d_weight, learned},
         9 - attrs.weight_frozen + attrs.loss_of_documents);
}

void lower_cut_head(lowering *l, const fsdp_node *node) {
  const fsdp_graph *graph = l->s->graph;
  head h = {.l = l, .node = node};
  const int count = node->operand_count - node->attrs.loss_of_documents;
  FSDP_CHECK(count <= LEARNED, "%d operands of the head", count);
  for (int o = 0; o < count; o++) h.operands[o] = lower_operand(l, &node->operands[o]);
  if (node->attrs.loss_of_documents) h.operands[LEARNED] = lower_operand(l, &node->operands[count]);
  const fsdp_param *weight = &graph->params[graph->values[node->operands[WEIGHT].value].param];
  h.axes = weight->cut.group_axes;
  h.ranks = fsdp_mesh_group_size(&l->s->program->mesh, h.axes);
  h.rows = node->attrs.batch * node->attrs.seq;
  fsdp_dtype gradient = count > D_WEIGHT ? h.operands[D_WEIGHT].dtype : FSDP_F32;
  int64_t chunk = fsdp_op_chunk_rows(l->s->config->backend->device, h.rows, node->attrs.vocabulary, gradient);
  for (int64_t first = 0; first < h.rows; first += chunk)
    lower_chunk(&h, first, fsdp_min_i64(chunk, h.rows - first));
}

// ---- The logits of one row of an evaluation

// What the next token is chosen from:
//
//   row (int32, of the caller)   embedding     that row of the head's input; zero on a rank that has it not
//                                head_logits   its logits: of this rank's part of the vocabulary
//                                all_reduce    over ranks with different rows: of them one has it
//                                all_gather    over the parts of the vocabulary, in the order of its entries
//
// Every rank ends up with the same 4 bytes an entry of the (padded) vocabulary; no other row's logits exist.
enum { ROW_OPERANDS = 3, LOGITS_OPERANDS = 5 };

// The row of x that the caller names; x's rows are those of the inputs.
static fsdp_operand take_row(lowering *l, const fsdp_node *node, fsdp_operand x, int row) {
  step_builder *s = l->s;
  const int64_t rows = node->attrs.batch * node->attrs.seq;
  fsdp_op_attrs attrs = {
      .batch = 1, .seq = 1, .channels = node->attrs.channels, .vocabulary = rows, .extent = rows + 1};
  const int taken = lower_temporary(l, node, "row", x.size_bytes / rows);
  fsdp_node made = *node;
  made.kind = FSDP_PLAN_OP_TAKE_ROW;
  made.first_index = made.second_index = (fsdp_affine){0};
  lower_op(
      l, &made, &attrs,
      (fsdp_operand[]){make_whole(s, row, FSDP_I32, FSDP_READ), x, make_whole(s, taken, x.dtype, FSDP_WRITE)},
      ROW_OPERANDS);
  return make_whole(s, taken, x.dtype, FSDP_READ);
}

void lower_logits(lowering *l, const fsdp_node *node) {
  step_builder *s = l->s;
  const fsdp_graph *graph = s->graph;
  FSDP_CHECK(node->operands[TARGETS].value == graph->inputs[FSDP_INPUT_TARGETS],
             "the head's rows are not those of the inputs");
  const fsdp_value *weight = &graph->values[node->operands[WEIGHT].value];
  const fsdp_axis_set axes = graph->params[weight->param].cut.group_axes;
  fsdp_op_attrs attrs = node->attrs;
  attrs.batch = attrs.seq = attrs.ranks = 1;
  const int64_t bytes = 4 * attrs.vocabulary;
  const fsdp_operand row = take_row(l, node, lower_operand(l, &node->operands[X]), s->row);
  fsdp_operand target = lower_operand(l, &node->operands[TARGETS]); // of the statistics, which nothing reads
  target.size_bytes = 4;
  int logits = lower_temporary(l, node, "row_logits", bytes);
  const int stats = lower_temporary(l, node, "row_stats", STATS_BYTES);
  fsdp_node made = *node;
  made.kind = FSDP_PLAN_OP_HEAD_LOGITS;
  lower_op(l, &made, &attrs,
           (fsdp_operand[]){row, lower_operand(l, &node->operands[WEIGHT]), target,
                            make_whole(s, logits, FSDP_F32, FSDP_WRITE),
                            make_whole(s, stats, FSDP_F32, FSDP_WRITE)},
           LOGITS_OPERANDS);
  make_sum(s, logits, s->graph->token_axes);
  const int parts = lower_is_cut_head(node) ? fsdp_mesh_group_size(&s->program->mesh, axes) : 1;
  if (parts > 1) {
    const int all = lower_temporary(l, node, "all_logits", bytes * parts);
    fsdp_operand gathered[2] = {make_whole(s, logits, FSDP_F32, FSDP_READ),
                                make_whole(s, all, FSDP_F32, FSDP_WRITE)};
    lower_mark(l, node, make_collective(s, FSDP_INSTR_ALL_GATHER, axes, FSDP_STREAM_TENSOR, -1, gathered));
    logits = all;
  }
  s->logits = logits;
}
