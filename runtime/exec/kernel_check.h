// No kernel is trusted on a GPU before its results have matched there: the first time that a build opens a GPU, small
// cases of attention by every kernel, and of products, are compared with the CPU's.
//
//   remembered for this GPU, driver, library and build? ─► else compared, in about half a second ─► remembered
//   attention that differs   its kernel is left out of the plan on every rank: wgmma, then mma, then general
//   anything else            the GPU is not used
//
// Before a plan is made, since which kernels run is in it.
#pragma once

#include "models/graph/attention_kernel.h"
#include "runtime/base/status.h"
#include "runtime/comm/world.h"
#include "runtime/device/gpu.h"

typedef struct fsdp_kernel_verdict {
  unsigned attention_distrusted; // set of 1u << fsdp_attention_kernel
  char finding[200];             // the first of what differs: "attention by wgmma differs by 0.3 (D 64, ...)"
} fsdp_kernel_verdict;

// Of this rank's GPU, which nothing uses meanwhile, but for the kernels in the set `missing`, which the
// executable does not hold. The backend's libraries are loaded. FSDP_ERR_PEER if a kernel differs that nothing
// replaces. Asked again for the same GPU, it answers as before.
fsdp_status fsdp_kernel_check(const fsdp_gpu *gpu, unsigned missing, fsdp_kernel_verdict *verdict,
                              fsdp_error *error);

// Makes the set that of all ranks together, each of which calls it; the lowest one with a finding says so, once.
void fsdp_kernel_check_agree(fsdp_world *world, fsdp_kernel_verdict *verdict);
