// Timelines: when each instruction of a step ran, on which rank. Simulated and measured ones are alike.
#pragma once

#include "runtime/plan/program/program.h"

// One instruction that ran.
typedef struct fsdp_timeline_event {
  int rank;
  int position; // of the instruction in the program
  int64_t step;
  int run;               // index in the step's order of sections (fsdp_program_step_order)
  double begin_s, end_s; // from the timeline's beginning, one clock for all ranks
} fsdp_timeline_event;

typedef struct fsdp_timeline {
  const fsdp_program *program;
  fsdp_timeline_event *events; // in any order
  int64_t count, capacity;
} fsdp_timeline;

// `program` outlives the timeline. There is room for `capacity` events; more are allocated as they come.
fsdp_timeline *fsdp_timeline_create(const fsdp_program *program, int64_t capacity);
void fsdp_timeline_destroy(fsdp_timeline *timeline); // NULL is allowed

// The program has its position, and it does not end before it begins.
void fsdp_timeline_append(fsdp_timeline *timeline, const fsdp_timeline_event *event);
