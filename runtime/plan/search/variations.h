// How the price of a step changes for one more and one less of each setting.
#pragma once

#include "runtime/plan/plan.h"
#include "runtime/plan/price/device_profile.h"
#include "runtime/plan/search/neighbours.h"

#define FSDP_VARIATIONS_MAX 14

typedef struct fsdp_variation {
  char change[FSDP_NEIGHBOUR_BYTES]; // as an option: "--batch-size 5"
  double step_s, tokens_per_s;
  int64_t peak_bytes, host_peak_bytes; // of the device, the host
  bool fits;                           // the limits that the plan was made with
} fsdp_variation;

// Plans and prices `plan` with single settings changed: micro-batch, accumulation, prefetch, the layers that
// are recomputed, the wrap's threshold, and the sizes of fsdp, tensor and context. What makes no plan is left
// out. Returns the number of `out`.
int fsdp_variations_of(const fsdp_plan *plan, const fsdp_device_profile *profile, int ranks_per_node,
                       fsdp_variation out[FSDP_VARIATIONS_MAX]);
