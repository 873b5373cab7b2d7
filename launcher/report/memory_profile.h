// Memory over one step: bytes live at every instruction, by category.
//
//   list positions of a step's sections:  |first: forward | backward |middle ... |last ... |update|
//
// What is drawn is the plan, which the measured figures are compared with in every step (train.h).
#pragma once

#include "runtime/plan/plan.h"

#include <stdio.h>

typedef struct fsdp_memory_profile {
  const fsdp_plan *plan;
  const char *model_name;
  int position_count;               // of the step; evaluation, which follows, is left out
  int64_t *bytes[FSDP_SPACE_COUNT]; // position * FSDP_CATEGORY_COUNT + category
} fsdp_memory_profile;

// Computes the profile of `plan`, which must outlive it.
fsdp_memory_profile fsdp_memory_profile_create(const fsdp_plan *plan, const char *model_name);
void fsdp_memory_profile_destroy(fsdp_memory_profile *profile);

// A span of the step that is forward, backward or update. Returns how many there are (at most 2 *
// FSDP_MAX_SECTIONS).
typedef struct fsdp_phase {
  const char *name;
  int begin, end;
  int times; // that it runs in a step: more than once in the section of the middle micro-batches
} fsdp_phase;
int fsdp_memory_profile_phases(const fsdp_memory_profile *profile, fsdp_phase out[2 * FSDP_MAX_SECTIONS]);
