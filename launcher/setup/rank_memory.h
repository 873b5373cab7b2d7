// The ranks of a job as a plan sees them: how many, on which nodes, with which memory and GPUs.
#pragma once

#include "runtime/comm/world.h"
#include "runtime/device/gpu.h"
#include "runtime/plan/text/mesh_choice.h"

// Every rank plans for the least memory, compute capability and number of multiprocessors that one of them
// has: what is chosen to fit is the same on all. Every rank calls it. FSDP_ERR_PEER, on all alike, if a GPU
// does not say what is free.
fsdp_status fsdp_rank_memory_find(fsdp_world *world, const fsdp_gpu *gpu, fsdp_setup_ranks *ranks,
                                  fsdp_error *error);
