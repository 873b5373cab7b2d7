// `--recompute auto` and `--offload-activations auto`: of what layers save, what is not kept so that the plan
// fits. A search (search.h) in which all else is fixed.
#pragma once

#include "runtime/plan/plan.h"
#include "runtime/plan/price/device_profile.h"

typedef struct fsdp_saving_choice {
  bool recompute, offload; // what may be chosen, beside the rules that config->saving has
  const fsdp_memory_limits *allowed;
  const fsdp_device_profile *profile; // NULL: a nominal one (fsdp_device_profile_nominal)
  int ranks_per_node;
} fsdp_saving_choice;

// Adds rules to config->saving: those of the fastest plan found that fits, or, and *found is false, of the
// one that needs least. Without a profile a plan that fits is left as it is: ratios cannot show that keeping
// less would shorten waits for memory. FSDP_ERR_OPTION if the given rules do not fit the model;
// FSDP_ERR_INPUT if the profile lacks what pricing, or offloading, needs.
fsdp_status fsdp_saving_choose(const fsdp_saving_choice *choice, fsdp_plan_config *config, bool *found,
                               fsdp_error *error);
