// The runs of parameters in a shard, for an update that rounds stochastically, as its random numbers count
// from a parameter's first element, or that decays some parameters and not others.
#pragma once

#include "kernels/kernels.h"
#include "runtime/plan/plan.h"

// Of this rank's shard of the unit. The caller frees the result.
fsdp_param_run *fsdp_param_runs(const fsdp_plan *plan, int unit, int rank, int *count);
