// The runs of parameters in a shard, by which an update rounds stochastically: its random numbers count
// from a parameter's first element.
#pragma once

#include "kernels/kernels.h"
#include "runtime/plan/plan.h"

// Of this rank's shard of the unit. The caller frees the result.
fsdp_rounding_run *fsdp_rounding_runs(const fsdp_plan *plan, int unit, int rank, int *count);
