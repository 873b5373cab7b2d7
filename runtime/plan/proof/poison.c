#include "runtime/plan/proof/poison.h"

#include "runtime/base/check.h"
#include "runtime/plan/proof/boundary.h"

#include <string.h>

static void append_poison(fsdp_program *program, int tensor, int unit) {
  const fsdp_tensor *target = &program->tensors[tensor];
  bool host = target->space == FSDP_SPACE_HOST;
  if (target->lifetime == FSDP_LIVE_ALWAYS || target->bytes == 0) return;
  fsdp_instr instr = {.kind = FSDP_INSTR_OP,
                      .stream = host ? FSDP_STREAM_HOST : FSDP_STREAM_COMPUTE,
                      .op = FSDP_PLAN_OP_POISON,
                      .unit = unit,
                      .module = target->module,
                      .policy = -1};
  // The pattern is the same in both halves, so two-byte elements serve what has no whole number of words.
  fsdp_operand operand = {.tensor = tensor,
                          .dtype = target->bytes % 4 == 0 ? FSDP_F32 : FSDP_BF16,
                          .access = FSDP_WRITE,
                          .size_bytes = target->bytes};
  fsdp_program_instr(program, &instr, &operand, 1);
}

// Appends the instructions of one section of `old`, with poison around them; fills new_position.
static void copy_section(fsdp_program *program, const fsdp_program *old, int section,
                         const fsdp_boundary *begins, const fsdp_boundary *ends, int *new_position) {
  fsdp_program_begin_section(program, old->sections[section].kind);
  for (int i = old->sections[section].begin; i < old->sections[section].end; i++) {
    const fsdp_instr *instr = &old->instrs[i];
    for (int t = begins->first[i]; t >= 0; t = begins->next[t]) append_poison(program, t, instr->unit);
    new_position[i] =
        fsdp_program_instr(program, instr, old->operands + instr->first_operand, instr->operand_count);
    for (int t = ends->first[i]; t >= 0; t = ends->next[t]) append_poison(program, t, instr->unit);
  }
  fsdp_program_end_section(program);
}

void fsdp_program_insert_poison(fsdp_program *program) {
  fsdp_program old = *program;
  fsdp_boundary begins = fsdp_boundary_create(&old, false), ends = fsdp_boundary_create(&old, true);
  int *new_position = fsdp_alloc((size_t)old.instr_count * sizeof *new_position);
  program->instrs = NULL;
  program->operands = NULL;
  program->instr_count = program->instr_capacity = 0;
  program->operand_count = program->operand_capacity = 0;
  program->section_count = program->wait_count = 0;
  for (int s = 0; s < old.section_count; s++) copy_section(program, &old, s, &begins, &ends, new_position);

  for (int i = 0; i < program->instr_count; i++)
    if (program->instrs[i].policy >= 0) program->instrs[i].policy = new_position[program->instrs[i].policy];
  for (int t = 0; t < program->tensor_count; t++) {
    fsdp_tensor *tensor = &program->tensors[t];
    if (tensor->lifetime == FSDP_LIVE_ALWAYS) {
      tensor->end = program->instr_count - 1;
    } else if (tensor->end >= tensor->begin) {
      tensor->begin = new_position[tensor->begin];
      tensor->end = new_position[tensor->end];
    }
  }
  fsdp_boundary_destroy(&begins);
  fsdp_boundary_destroy(&ends);
  free(new_position);
  free(old.instrs);
  free(old.operands);
}
