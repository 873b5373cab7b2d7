#include "bench/step_ops.h"

#include "runtime/base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- Which launches are the same

static bool same_attrs(const fsdp_op_attrs *a, const fsdp_op_attrs *b) {
  return a->batch == b->batch && a->seq == b->seq && a->channels == b->channels && a->heads == b->heads &&
         a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->intermediate == b->intermediate &&
         a->vocabulary == b->vocabulary && a->in_features == b->in_features &&
         a->out_features == b->out_features && a->out_stride == b->out_stride && a->window == b->window &&
         a->chunk_rows == b->chunk_rows && a->weight_transposed == b->weight_transposed &&
         a->piece == b->piece && a->chunk == b->chunk && a->kv_seq == b->kv_seq &&
         a->kv_parts == b->kv_parts && a->kv_piece == b->kv_piece && a->ranks == b->ranks;
}

static bool same_op(const step_op *a, const step_op *b) {
  if (a->instr->op != b->instr->op || a->instr->operand_count != b->instr->operand_count) return false;
  if (!same_attrs(&a->attrs, &b->attrs)) return false;
  for (int i = 0; i < a->instr->operand_count; i++) {
    const fsdp_operand *x = &a->operands[i], *y = &b->operands[i];
    if (x->dtype != y->dtype || x->access != y->access || x->size_bytes != y->size_bytes) return false;
  }
  return true;
}

static void label_op(const step_ops *list, step_op *op) {
  const fsdp_op_letters *row = fsdp_op_letters_of(op->instr->op);
  const fsdp_operand *first = &op->operands[0];
  int used = snprintf(op->label, sizeof op->label, "%s", fsdp_op_name(op->instr->op)), alike = 0;
  for (int l = 0; l < row->letter_count; l++) {
    const char name = row->letters[l].name;
    if (strchr("nbtk", name)) continue;
    used += snprintf(
        op->label + used, sizeof op->label - (size_t)used, " %c%lld", name,
        (long long)fsdp_op_letter_size(&op->attrs, name, first->size_bytes / fsdp_dtype_bytes(first->dtype)));
  }
  for (int i = 0; i < list->count; i++) alike += strncmp(list->ops[i].label, op->label, (size_t)used) == 0;
  if (alike > 0) snprintf(op->label + used, sizeof op->label - (size_t)used, ", another %d", alike);
}

static void add_instr(step_ops *list, const fsdp_program *program, const fsdp_instr *instr) {
  step_op op = {.instr = instr,
                .attrs = instr->attrs,
                .operands = &program->operands[instr->first_operand],
                .count = 1};
  op.attrs.first_index = fsdp_affine_at(&instr->first_index, &program->mesh, 0);
  op.attrs.second_index = fsdp_affine_at(&instr->second_index, &program->mesh, 0);
  for (int i = 0; i < list->count; i++) {
    if (!same_op(&list->ops[i], &op)) continue;
    list->ops[i].count++;
    return;
  }
  label_op(list, &op);
  list->ops[list->count++] = op;
}

step_ops step_ops_create(const fsdp_plan *plan) {
  const fsdp_program *program = plan->program;
  step_ops list = {.ops = fsdp_alloc((size_t)program->instr_count * sizeof *list.ops)};
  int *order = fsdp_alloc((size_t)(program->micro_batches + 1) * sizeof *order);
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

// ---- What the op table says of them

static const fsdp_op_extent *extents_of(const step_op *op, fsdp_op_extent extents[FSDP_OP_MAX_OPERANDS]) {
  FSDP_CHECK(op->instr->operand_count <= FSDP_OP_MAX_OPERANDS, "%d operands", op->instr->operand_count);
  for (int i = 0; i < op->instr->operand_count; i++) {
    const fsdp_operand *o = &op->operands[i];
    extents[i] = (fsdp_op_extent){.dtype = o->dtype, .access = o->access, .bytes = o->size_bytes};
  }
  return extents;
}

fsdp_op_work step_op_work(const step_op *op) {
  fsdp_op_extent extents[FSDP_OP_MAX_OPERANDS];
  return fsdp_op_work_of(op->instr->op, &op->attrs, extents_of(op, extents), op->instr->operand_count);
}
