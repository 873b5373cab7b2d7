// No kernel is trusted on a GPU before its results have matched there: the first time that a build opens a
// GPU, small cases of attention by every kernel, and of products, also grouped by expert, are compared with
// the CPU's.
//
//   remembered for this GPU, driver, library and build? ─► else compared in about half a second, and kept
//   attention that differs   its kernel is left out of the plan on every rank: wgmma, then mma, then general
//   experts' products that   every rank's plan has them by the general kernel
//     differ on tensor cores
//   anything else            the GPU is not used
//
// Before a plan is made, since which kernels run is in it.
#pragma once

#include "kernels/kernels.h"
#include "runtime/base/status.h"
#include "runtime/device/gpu.h"

// Of this rank's GPU, which nothing uses meanwhile; the backend's libraries are loaded. Sets what of *target
// is distrusted. FSDP_ERR_PEER if a kernel differs that nothing replaces. Asked again, it answers as before.
fsdp_status fsdp_kernel_check(const fsdp_gpu *gpu, fsdp_op_gpu *target, fsdp_error *error);

// What this rank's check has found, in a line; "" if nothing.
const char *fsdp_kernel_check_finding(void);
