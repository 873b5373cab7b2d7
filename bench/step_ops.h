// The kernels that one training step launches, as the plan's own list says: each distinct one once, with how
// often it runs. What bench_gpu times and bench_budget prices is read from here, so that neither has shapes,
// chunks or element types of its own.
#pragma once

#include "runtime/plan/plan.h"

#define STEP_OP_LABEL_BYTES 96

// Operands are those of models/graph/ops.def. A copy or a collective among the ranks is no kernel of ours and
// not here.
typedef struct step_op {
  const fsdp_instr *instr; // the first of its kind, in the plan's program
  const fsdp_operand *operands;
  int64_t count; // launches of a step
} step_op;

typedef struct step_ops {
  step_op *ops; // in the order of their first launch
  int count;
} step_ops;

// Reads one whole step (every micro-batch and the update) on the compute stream. `plan` must outlive the
// list; the caller frees it with step_ops_destroy.
step_ops step_ops_create(const fsdp_plan *plan);
void step_ops_destroy(step_ops *list);

// "linear 4096 -> 6144", "adamw 218112000 bf16": unique among a step's kernels. Returns `out`.
const char *step_op_label(const step_op *op, char out[STEP_OP_LABEL_BYTES]);

// What a launch must do at least.
fsdp_op_work step_op_work(const step_op *op);
