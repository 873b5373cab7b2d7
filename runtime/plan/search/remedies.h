// What would make a plan fit: the least change of its configuration, as options.
#pragma once

#include "runtime/plan/search/neighbours.h"

#define FSDP_REMEDY_BYTES (2 * FSDP_NEIGHBOUR_BYTES)

typedef struct fsdp_remedy {
  char change[FSDP_REMEDY_BYTES];  // "--prefetch 0"; "": no change needs less
  bool is_enough;                  // else the least that was found
  int64_t bytes[FSDP_SPACE_COUNT]; // with the change
} fsdp_remedy;

// For a configuration that makes a plan above what the evaluator allows. Looks for one change that is enough:
// the first of those that change no result, or with a profile the fastest of them; then the first that does;
// then for several together. Each candidate is planned.
fsdp_remedy fsdp_remedy_of(const fsdp_plan_config *config, fsdp_evaluator *evaluator);
