// Memory over one step: bytes live at every instruction, by category; and as a file, JSON for a program or
// SVG for a person.
//
//   list positions of a step's sections:  |first: forward | backward |middle ... |last ... |update|
//
// What is drawn is the plan, which the measured figures are compared with in every step (train.h).
#pragma once

#include "runtime/base/status.h"
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
typedef struct fsdp_memory_phase {
  const char *name;
  int begin, end;
  int times; // that it runs in a step: more than once in the section of the middle micro-batches
} fsdp_memory_phase;
int fsdp_memory_profile_phases(const fsdp_memory_profile *profile,
                               fsdp_memory_phase out[2 * FSDP_MAX_SECTIONS]);

// Prints the profile as one self-contained SVG document: bytes over the step, stacked by category, the peak
// marked with its owner.
void fsdp_memory_svg_print(const fsdp_memory_profile *profile, FILE *out);

// Writes the profile of `plan` to `path`, whose ending (.json or .svg) says as what. An existing file
// is replaced only by a whole one. FSDP_ERR_INPUT if it cannot be written.
fsdp_status fsdp_memory_profile_write(const fsdp_plan *plan, const char *model_name, const char *path,
                                      fsdp_error *error);
