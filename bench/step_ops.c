#include "bench/step_ops.h"

#include "kernels/kernels.h"
#include "runtime/base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- Which launches are the same

static bool same_attrs(const fsdp_op_attrs *a, const fsdp_op_attrs *b) {
  return a->batch == b->batch && a->seq == b->seq && a->channels == b->channels && a->heads == b->heads &&
         a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->hidden == b->hidden &&
         a->vocabulary == b->vocabulary && a->in_features == b->in_features &&
         a->out_features == b->out_features && a->out_stride == b->out_stride &&
         a->chunk_rows == b->chunk_rows;
}

static bool same_op(const step_op *a, const step_op *b) {
  if (a->instr->op != b->instr->op || a->instr->operand_count != b->instr->operand_count) return false;
  if (!same_attrs(&a->instr->attrs, &b->instr->attrs)) return false;
  for (int i = 0; i < a->instr->operand_count; i++) {
    const fsdp_operand *x = &a->operands[i], *y = &b->operands[i];
    if (x->dtype != y->dtype || x->access != y->access || x->size_bytes != y->size_bytes) return false;
  }
  return true;
}

static void add_instr(step_ops *list, const fsdp_program *program, const fsdp_instr *instr) {
  const step_op op = {.instr = instr, .operands = &program->operands[instr->first_operand], .count = 1};
  for (int i = 0; i < list->count; i++) {
    if (!same_op(&list->ops[i], &op)) continue;
    list->ops[i].count++;
    return;
  }
  list->ops[list->count++] = op;
}

step_ops step_ops_create(const fsdp_plan *plan) {
  const fsdp_program *program = plan->program;
  step_ops list = {.ops = fsdp_alloc((size_t)program->instr_count * sizeof *list.ops)};
  int *order = fsdp_alloc((size_t)(program->accumulation + 1) * sizeof *order);
  const int sections = fsdp_program_step_order(program, order);
  for (int s = 0; s < sections; s++) {
    const fsdp_section *section = &program->sections[order[s]];
    for (int i = section->begin; i < section->end; i++) {
      const fsdp_instr *instr = &program->instrs[i];
      if (instr->kind == FSDP_INSTR_OP && instr->stream != FSDP_STREAM_HOST) add_instr(&list, program, instr);
    }
  }
  free(order);
  return list;
}

void step_ops_destroy(step_ops *list) {
  free(list->ops);
  *list = (step_ops){0};
}

// ---- Names

static int64_t operand_elems(const fsdp_operand *o) {
  return o->size_bytes / fsdp_dtype_bytes(o->dtype);
}

// The widest operand's element type and what tells the shapes of one op apart.
static void describe_shape(const step_op *op, char *out, size_t bytes) {
  const fsdp_op_attrs *a = &op->instr->attrs;
  const fsdp_operand *first = &op->operands[0], *last = &op->operands[op->instr->operand_count - 1];
  switch (op->instr->op) {
  case FSDP_OP_LINEAR:
  case FSDP_OP_LINEAR_BACKWARD_INPUT:
  case FSDP_OP_LINEAR_BACKWARD_WEIGHT:
    snprintf(out, bytes, " %lld -> %lld%s%s", (long long)a->in_features, (long long)a->out_features,
             last->dtype == FSDP_F32 && first->dtype != FSDP_F32 ? " to fp32" : "",
             last->access == FSDP_UPDATE ? ", added" : "");
    return;
  case FSDP_OP_LINEAR_CROSS_ENTROPY:
  case FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD:
    snprintf(out, bytes, " %lld -> %lld, chunks of %lld", (long long)a->channels, (long long)a->vocabulary,
             (long long)a->chunk_rows);
    return;
  case FSDP_OP_ATTENTION:
  case FSDP_OP_ATTENTION_BACKWARD:
    snprintf(out, bytes, " %lld/%lld heads of %lld", (long long)a->heads, (long long)a->kv_heads,
             (long long)a->head_dim);
    return;
  case FSDP_OP_CAST:
  case FSDP_OP_ADD:
    snprintf(out, bytes, " %lld %s to %s", (long long)operand_elems(first), fsdp_dtype_name(first->dtype),
             fsdp_dtype_name(last->dtype));
    return;
  case FSDP_OP_ADAMW:
    snprintf(out, bytes, " %lld %s, moments %s", (long long)operand_elems(first),
             fsdp_dtype_name(op->operands[3].dtype), fsdp_dtype_name(op->operands[4].dtype));
    return;
  case FSDP_OP_ZERO:
  case FSDP_OP_SUM_SQUARES:
    snprintf(out, bytes, " %lld %s", (long long)operand_elems(first), fsdp_dtype_name(first->dtype));
    return;
  default:
    out[0] = '\0';
    for (int i = 0; i < op->instr->operand_count; i++)
      if (op->operands[i].access == FSDP_UPDATE && op->instr->operand_count > 1)
        snprintf(out, bytes, ", added");
  }
}

const char *step_op_label(const step_op *op, char out[STEP_OP_LABEL_BYTES]) {
  char shape[STEP_OP_LABEL_BYTES / 2];
  describe_shape(op, shape, sizeof shape);
  snprintf(out, STEP_OP_LABEL_BYTES, "%s%s", fsdp_op_name(op->instr->op), shape);
  return out;
}

// ---- Work

// Every chunk but the first adds to the weight's gradient, so it is read and written once more for each.
static void add_head_work(const step_op *op, step_op_work *work) {
  const fsdp_op_attrs *a = &op->instr->attrs;
  const double logits = (double)(a->batch * a->seq) * (double)a->vocabulary;
  const int64_t chunks = (a->batch * a->seq + a->chunk_rows - 1) / a->chunk_rows;
  // The row's maximum and sum, then its gradients in place of the logits.
  work->row_bytes = 4 * logits;
  if (op->instr->op != FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD) return;
  work->row_bytes += (4 + (double)fsdp_dtype_bytes(op->operands[0].dtype)) * logits;
  work->bytes += 2 * (double)(chunks - 1) * (double)op->operands[6].size_bytes;
}

step_op_work step_op_cost(const step_op *op) {
  step_op_work work = {.flops = fsdp_op_flops(op->instr->op, &op->instr->attrs)};
  const fsdp_operand *last = &op->operands[op->instr->operand_count - 1];
  const int64_t workspace = fsdp_op_workspace_bytes(FSDP_OP_CUDA, op->instr->op, &op->instr->attrs,
                                                    operand_elems(&op->operands[0]));
  for (const fsdp_operand *o = op->operands; o <= last; o++) {
    if (o == last && workspace > 0) break; // the kernel's own scratch
    work.bytes += (o->access == FSDP_UPDATE ? 2.0 : 1.0) * (double)o->size_bytes;
  }
  // An embedding reads one row of its table for each token, not the table.
  if (op->instr->op == FSDP_OP_EMBEDDING)
    work.bytes += (double)op->operands[2].size_bytes - (double)op->operands[1].size_bytes;
  if (op->instr->op == FSDP_OP_LINEAR_CROSS_ENTROPY || op->instr->op == FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD)
    add_head_work(op, &work);
  return work;
}
