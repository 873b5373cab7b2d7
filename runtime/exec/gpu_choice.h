// Which GPU each rank of a job uses, agreed on by all of them.
#pragma once

#include "runtime/comm/world.h"
#include "runtime/device/gpu.h"

// Chooses this rank's GPU (fsdp_gpu_find); every rank must call it, and all return the same. FSDP_ERR_PEER as
// there, and where there are too few GPUs: with `allow_shared` ranks may share one, for tests, as the
// communication library must then be told that each is a machine of its own. Creates no context on any GPU.
fsdp_status fsdp_gpu_choose(fsdp_world *world, bool allow_shared, fsdp_gpu *gpu, fsdp_error *error);
