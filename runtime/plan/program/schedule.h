// The scheduler: from graph, units and strategy to the list of instructions. All policy is here: when a unit
// is gathered and freed, prefetch depth, recomputation, accumulation, offload, when updates run. It makes no
// waits (waits.h) and no addresses (memory.h); the order of the list is what both work from.
#pragma once

#include "runtime/plan/plan.h"

// Fills plan->program and plan->unit_state from plan->config, graph and units.
void fsdp_schedule(fsdp_plan *plan);
