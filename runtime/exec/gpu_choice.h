// Which GPU each rank of a job uses, agreed on by all of them.
#pragma once

#include "runtime/comm/world.h"
#include "runtime/device/gpu.h"

// Chooses this rank's GPU (fsdp_gpu_find); every rank must call it, and all return the same. FSDP_ERR_PEER as
// there, and if there are too few GPUs. With `allow_shared` (tests) ranks may share one; the communication
// library must then treat each rank as a separate machine. Creates no context on any GPU.
fsdp_status fsdp_gpu_choose(fsdp_world *world, bool allow_shared, fsdp_gpu *gpu, fsdp_error *error);
