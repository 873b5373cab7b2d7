// The kernels that one training step launches, from the plan's own list: each distinct one once, with its
// count. bench_gpu times these, so it has no shapes, chunks or element types of its own.
#pragma once

#include "runtime/plan/plan.h"

#define STEP_OP_LABEL_BYTES 96

// Operands are those of models/graph/ops.def. Copies and collectives are not kernels of
// ours and not listed.
typedef struct step_op {
  const fsdp_instr *instr; // the first of its kind, in the plan's program
  fsdp_op_attrs attrs;     // its attributes on the first rank
  const fsdp_operand *operands;
  int64_t count; // launches per step
  // "linear i4096 o6144", "adamw p218112000": the op's letters but those of rows, unique in a step.
  char label[STEP_OP_LABEL_BYTES];
} step_op;

typedef struct step_ops {
  step_op *ops; // in the order of their first launch
  int count;
} step_ops;

// Reads one whole step (every micro-batch and the update) of the first rank. `plan` must outlive the list;
// the caller frees it with step_ops_destroy.
step_ops step_ops_create(const fsdp_plan *plan);
void step_ops_destroy(step_ops *list);

// The least work that a launch must do.
fsdp_op_work step_op_work(const step_op *op);
