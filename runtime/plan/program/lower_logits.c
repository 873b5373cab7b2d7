// The logits of one row of an evaluation, from which the next token is chosen.
//
//   row (int32, of the caller)   embedding     that row of the head's input; zero on a rank that has it not
//                                head_logits   its logits: of this rank's part of the vocabulary
//                                all_reduce    over ranks with different rows: of them one has it
//                                all_gather    over the parts of the vocabulary, in the order of its entries
//
// Every rank ends up with the same 4 bytes an entry of the (padded) vocabulary; no other row's logits exist.
#include "runtime/base/check.h"
#include "runtime/plan/mesh/placement.h"
#include "runtime/plan/program/lower.h"

// Operands of linear_cross_entropy, as ops.def has them.
enum { X, WEIGHT, TARGETS };

#define STATS_BYTES 12

// The row of x that the caller names; x's rows are those of the inputs.
static fsdp_operand take_row(lowering *l, const fsdp_node *head, fsdp_operand x, int row) {
  step_builder *s = l->s;
  const int64_t rows = head->attrs.batch * head->attrs.seq;
  fsdp_op_attrs attrs = {
      .batch = 1, .seq = 1, .channels = head->attrs.channels, .vocabulary = rows, .extent = rows + 1};
  const int taken = lower_temporary(l, head, "row", x.size_bytes / rows);
  fsdp_node node = *head;
  node.kind = fsdp_op_take_row();
  node.first_index = node.second_index = (fsdp_affine){0};
  lower_op(
      l, &node, &attrs,
      (fsdp_operand[]){make_whole(s, row, FSDP_I32, FSDP_READ), x, make_whole(s, taken, x.dtype, FSDP_WRITE)},
      3);
  return make_whole(s, taken, x.dtype, FSDP_READ);
}

void lower_logits(lowering *l, const fsdp_node *head) {
  step_builder *s = l->s;
  const fsdp_graph *graph = s->graph;
  FSDP_CHECK(head->operands[TARGETS].value == graph->inputs[FSDP_INPUT_TARGETS],
             "the head's rows are not those of the inputs");
  const fsdp_value *weight = &graph->values[head->operands[WEIGHT].value];
  const fsdp_axis_set axes = graph->params[weight->param].cut.group_axes;
  fsdp_op_attrs attrs = head->attrs;
  attrs.batch = attrs.seq = attrs.ranks = 1;
  const int64_t bytes = 4 * attrs.vocabulary;
  const fsdp_operand row = take_row(l, head, lower_operand(l, &head->operands[X]), s->row);
  fsdp_operand target = lower_operand(l, &head->operands[TARGETS]); // of the statistics, which nothing reads
  target.size_bytes = 4;
  int logits = lower_temporary(l, head, "row_logits", bytes);
  const int stats = lower_temporary(l, head, "row_stats", STATS_BYTES);
  fsdp_node node = *head;
  node.kind = fsdp_op_head(FSDP_HEAD_LOGITS);
  lower_op(l, &node, &attrs,
           (fsdp_operand[]){row, lower_operand(l, &head->operands[WEIGHT]), target,
                            make_whole(s, logits, FSDP_F32, FSDP_WRITE),
                            make_whole(s, stats, FSDP_F32, FSDP_WRITE)},
           5);
  make_sum_over_tokens(s, logits);
  const int parts = lower_is_cut_head(head) ? fsdp_mesh_group_size(&s->program->mesh, axes) : 1;
  if (parts > 1) {
    const int all = lower_temporary(l, head, "all_logits", bytes * parts);
    fsdp_operand gathered[2] = {make_whole(s, logits, FSDP_F32, FSDP_READ),
                                make_whole(s, all, FSDP_F32, FSDP_WRITE)};
    lower_mark(l, head, make_collective(s, FSDP_INSTR_ALL_GATHER, axes, FSDP_STREAM_TENSOR, -1, gathered));
    logits = all;
  }
  s->logits = logits;
}
