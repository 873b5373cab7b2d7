// The order in which one step issues its instructions, and what each of them follows.
//
//   run    a section's place in the step (fsdp_program_step_order): the section of the middle micro-batches
//          has several
//   place  an instruction's place in the step's order of issue, from 0
#pragma once

#include "runtime/plan/program/program.h"

typedef struct fsdp_issue_order {
  const fsdp_program *program;
  int64_t count; // instructions that a step issues
  int *position; // by place: in the program
  int *run;      // by place
  int run_count;
  int *run_section;   // by run: an index of program->sections
  int64_t *run_begin; // by run: the place of its first instruction
  int64_t *previous;  // by place: of the instruction before it on its stream, -1: none in the step
  int64_t *of_stream[FSDP_STREAM_COUNT], stream_count[FSDP_STREAM_COUNT]; // places on each stream, in order
  int *section; // by position: its section, -1: none
} fsdp_issue_order;

// `program` has the sections of a step, and outlives the order.
fsdp_issue_order *fsdp_issue_order_create(const fsdp_program *program);
void fsdp_issue_order_destroy(fsdp_issue_order *order); // NULL is allowed

// The place of the instruction at `position` in run `run`, whose section must hold it.
int64_t fsdp_issue_order_place(const fsdp_issue_order *order, int run, int position);

// An instruction of this step, or of the one before it.
typedef struct fsdp_issue {
  int steps_back; // 0 or 1
  int64_t place;
} fsdp_issue;

// The latest issue of `position` before that at `place`, which is what a wait for it means; false if neither
// this step nor the one before issues it.
bool fsdp_issue_order_latest(const fsdp_issue_order *order, int64_t place, int position, fsdp_issue *found);

// The instruction before that at `place` on its stream.
fsdp_issue fsdp_issue_order_previous(const fsdp_issue_order *order, int64_t place);
