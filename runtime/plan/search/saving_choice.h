// What layers recompute and offload, chosen so that the plan fits: `auto`.
//
// Every saved value of a layer can be kept, recomputed, or offloaded, in the first layers of the model (see
// saving.h). Beginning with everything kept, the choice takes, one after the other, the change that costs
// least per byte of device memory that it saves; of that sequence, the shortest part with which the plan
// fits. Costs are counted in bytes of device memory traffic (saving_cost.h). Memory is exact: each candidate
// is planned.
#pragma once

#include "runtime/plan/search/evaluate.h"

typedef struct fsdp_saving_choice {
  bool recompute, offload; // what may be chosen; rules of the other kind in config->saving stay as they are
  const fsdp_memory_limits *allowed; // what the plan may take
} fsdp_saving_choice;

// Sets config->saving to the least rules with which the plan fits; *found is false if none does, and the
// rules are then those that save most. FSDP_ERR_OPTION if the configuration makes no plan.
fsdp_status fsdp_saving_choose(const fsdp_saving_choice *choice, fsdp_plan_config *config, bool *found,
                               fsdp_error *error);

// The same on a machine with a profile: also searches what else fits, and takes the faster of both by their
// prices. Errors of pricing too.
fsdp_status fsdp_saving_choose_priced(const fsdp_saving_choice *choice, const fsdp_device_profile *profile,
                                      int ranks_per_node, fsdp_plan_config *config, fsdp_error *error);
