// The settings that differ from one in a single thing, each as the options that ask for it. A price's
// variations, the remedies of a plan that does not fit, and hints evaluate them.
#pragma once

#include "runtime/plan/search/evaluate.h"

#define FSDP_NEIGHBOUR_BYTES (FSDP_SAVING_TEXT_BYTES + 32)

typedef struct fsdp_neighbour {
  // Changes `config` and writes the options, or returns false if it has no such neighbour.
  bool (*apply)(const struct fsdp_neighbour *self, fsdp_evaluator *evaluator, fsdp_plan_config *config,
                char options[FSDP_NEIGHBOUR_BYTES]);
  int by;           // +1 or -1, or a factor of 2: up or down
  const char *axis; // whose size changes
  fsdp_fate fate;   // of the values that are chosen
  // A remedy may need less memory; others are shown beside a price.
  bool is_remedy, changes_results;
  bool repeats; // as a remedy until it fits
} fsdp_neighbour;

// Variations by setting, the lesser value first; remedies in the order of preference: those that change no
// result come first.
const fsdp_neighbour *fsdp_neighbours(int *count);

// Each decoder layer a unit. False if it is so already.
bool fsdp_neighbour_wraps_blocks(fsdp_plan_config *config);
