// State: this rank's shards of the optimizer's slots (runtime/plan/program/optimizer.h), by parameter name,
// to fill, save and load.
//
//   unit's flat shard   | run of p | run of q |pad| ... |     a run: consecutive elements of one parameter
//
// The streams must be idle (fsdp_executor_drain).
#pragma once

#include "runtime/base/status.h"
#include "runtime/exec/executor.h"

// Elements [first_elem, first_elem + numel) of a parameter, flattened row-major.
typedef struct fsdp_state_range {
  int unit;
  int param; // in the plan's graph
  const char *name;
  int64_t first_elem, numel;
  fsdp_dtype dtype; // of the values handed over
} fsdp_state_range;

// Reads or writes `values` (range->numel of range->dtype). A long run comes in pieces.
typedef fsdp_status (*fsdp_state_callback)(void *context, const fsdp_state_range *range, void *values,
                                           fsdp_error *error);

// Masters (and their low-precision copies) from `source`, which gives fp32 whatever the master's dtype
// (rounded to nearest), by slices as fsdp_state_load; pads and moments become zero. Stops at the first error.
// What zero1 keeps of other ranks' shards follows from the exchange below, as after every function here that
// writes.
fsdp_status fsdp_state_fill(fsdp_executor *executor, fsdp_state_callback source, void *context,
                            fsdp_error *error);

// The same with new weights that the device draws itself if it can (fsdp_kernel_backend.draw). The values are
// those that fsdp_init_param gives by parameter name and element index.
void fsdp_state_draw(fsdp_executor *executor, uint64_t seed);

// Hands every run of a slot to `sink`, in its own dtype, units in order and runs in order.
fsdp_status fsdp_state_save(fsdp_executor *executor, int slot, fsdp_state_callback sink, void *context,
                            fsdp_error *error);

// Fills the runs of a slot from `source`, in its own dtype, in the same order; masters' copies follow, pads
// become zero. Before an exchange (fsdp_executor_run_exchange) each of the R replicas of a shard reads 1/R of
// it, and the exchange completes masters and their copies. All ranks run the exchange once all have loaded
// without an error. If the plan has no exchange section, everything is loaded here.
fsdp_status fsdp_state_load(fsdp_executor *executor, int slot, fsdp_state_callback source, void *context,
                            fsdp_error *error);

// Copies elements [first_elem, first_elem + numel) of this rank's flat shard of a unit, pads included, in the
// slot's dtype. The slot must be kept by the plan.
void fsdp_state_read_shard(fsdp_executor *executor, int slot, int unit, int64_t first_elem, int64_t numel,
                           void *out);
