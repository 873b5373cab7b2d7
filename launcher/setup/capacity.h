// Whether a plan fits the memory there is, before anything is allocated; and if not, what would.
#pragma once

#include "runtime/plan/plan.h"
#include "runtime/plan/price/device_profile.h"

typedef struct fsdp_limits {
  // Of each space: an arena, and on a device what lies beside it (fsdp_plan_reserve_bytes); 0: none. Of both
  // together, if one memory holds them; 0: none.
  fsdp_memory_limits memory;
  const char *place[FSDP_SPACE_COUNT]; // what sets it: "--memory-limit 8GB (command line)", "this machine's
                                       // memory ..."
  const char *shared_place;
  int ranks_per_machine;              // which share that memory
  const fsdp_device_profile *profile; // what would fit is chosen by its price there; NULL: by a fixed order
} fsdp_limits;

// FSDP_OK if `plan` fits. Otherwise FSDP_ERR_CAPACITY with what it needs, the limit, and an option (or a
// few) with which it would fit, found by planning again with each.
fsdp_status fsdp_capacity_check(const fsdp_plan *plan, const fsdp_limits *limits, fsdp_error *error);

// Whether `plan` fits.
bool fsdp_capacity_fits(const fsdp_plan *plan, const fsdp_limits *limits);

// Memory of this machine that a process may use: what is installed, or what its control groups allow if that
// is less.
int64_t fsdp_capacity_machine_bytes(void);
