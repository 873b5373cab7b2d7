// What layers recompute and offload, chosen so that the plan fits: `auto`.
//
// Every saved value of a layer can be kept, recomputed, or offloaded, in the first layers of the model (see
// saving.h). Beginning with everything kept, the choice takes, one after the other, the change that costs
// least per byte of device memory that it saves; of that sequence, the shortest part with which the plan
// fits. Costs are counted in bytes of device memory traffic (saving_cost.h). Memory is exact: each candidate
// is planned.
#pragma once

#include "runtime/plan/plan.h"

typedef struct fsdp_saving_choice {
  bool recompute, offload; // what may be chosen; rules of the other kind in config->saving stay as they are
  // Whether a plan fits. It must not keep the plan.
  bool (*fits)(const fsdp_plan *plan, void *context);
  void *context;
} fsdp_saving_choice;

// Sets config->saving to the least rules with which the plan fits; *found is false if none does, and the
// rules are then those that save most. FSDP_ERR_OPTION if the configuration makes no plan.
fsdp_status fsdp_saving_choose(const fsdp_saving_choice *choice, fsdp_plan_config *config, bool *found,
                               fsdp_error *error);
