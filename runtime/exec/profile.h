// Where a step's time goes, from timestamps at the start and end of instructions; for streams that are device
// queues, whose instructions the host only enqueues, from timestamps at the ends of phases.
//
// Phases of a step: the forward of each micro-batch (up to the first backward op), its backward, the update
// section.
#pragma once

#include "runtime/plan/program/program.h"

typedef enum fsdp_phase {
  FSDP_PHASE_FORWARD,
  FSDP_PHASE_BACKWARD,
  FSDP_PHASE_UPDATE,
  FSDP_PHASE_COUNT
} fsdp_phase;

typedef struct fsdp_profile_report {
  double busy_ms[FSDP_STREAM_COUNT]; // running instructions, waits inside a collective included
  // Wall time from the phase's first compute instruction to its last, summed over micro-batches; the update's
  // over all streams. An update that runs behind the backward belongs to the backward.
  double phase_ms[FSDP_PHASE_COUNT];
  double op_ms[FSDP_OP_KIND_COUNT]; // of busy_ms, by op, over all streams
} fsdp_profile_report;

typedef struct fsdp_profile fsdp_profile;

// Records two steps of the program.
fsdp_profile *fsdp_profile_create(const fsdp_program *program);
void fsdp_profile_destroy(fsdp_profile *profile); // NULL is allowed

// Starts step `step` in the records of the step two before.
void fsdp_profile_begin_step(fsdp_profile *profile, int64_t step);

// One instruction that ran.
typedef struct fsdp_profile_sample {
  int64_t step;
  int section_run; // which of the step's sections, from 0
  int position;
  fsdp_stream stream;
  int64_t start_ns, end_ns;
} fsdp_profile_sample;

// Records an instruction, on its stream's thread.
void fsdp_profile_instr(fsdp_profile *profile, const fsdp_profile_sample *sample);

// The phase that begins, or ends, with the compute instruction at `position` of its section; -1: none.
int fsdp_profile_phase_begins(const fsdp_profile *profile, int position);
int fsdp_profile_phase_ends(const fsdp_profile *profile, int position);

// The step's report; its instructions must be complete.
void fsdp_profile_report_step(const fsdp_profile *profile, int64_t step, fsdp_profile_report *report);
