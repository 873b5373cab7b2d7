// What another setting of a plan would save, for a line beside its report.
#pragma once

#include "runtime/plan/plan.h"

typedef struct fsdp_hints {
  int unit; // the largest that stays gathered through the whole step and would not under `block`, or -1
  int64_t saved_bytes;  // of the peak, by `--wrap block`, if unit >= 0
  int64_t preset_bytes; // sent by a rank in a step, by `--sharding fsdp-tp` in place of rules; 0: none
} fsdp_hints;

// Computes them by planning the other settings without addresses.
fsdp_hints fsdp_hints_of(const fsdp_plan *plan);
