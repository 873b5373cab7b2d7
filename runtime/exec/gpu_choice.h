// Which GPU each rank of a job uses, agreed on by all of them.
#pragma once

#include "kernels/kernels.h"
#include "runtime/comm/world.h"
#include "runtime/device/gpu.h"

// Chooses this rank's GPU (fsdp_gpu_find); every rank must call it, and all return the same. FSDP_ERR_PEER as
// there, and if there are too few GPUs. With `allow_shared` (tests) ranks may share one; the communication
// library must then treat each rank as a separate machine. Creates no context on any GPU.
fsdp_status fsdp_gpu_choose(fsdp_world *world, bool allow_shared, fsdp_gpu *gpu, fsdp_error *error);

// Opens it for this build: loads libraries, makes its context, and compares its kernels if that was not done
// yet (kernel_check.h). *free_bytes is what is free on it for this rank; *target what the plan's kernels
// depend on, but for what is asked for. Of this rank alone; FSDP_ERR_PEER, FSDP_ERR_CAPACITY.
fsdp_status fsdp_gpu_open(const fsdp_gpu *gpu, int64_t *free_bytes, fsdp_op_gpu *target, fsdp_error *error);

// Makes *target that of all ranks, each of which calls it: the least of every number, and no kernel that one
// of them lacks or distrusts. The lowest rank that distrusts one says so.
void fsdp_gpu_agree(fsdp_world *world, fsdp_op_gpu *target);
