// The GPU of a rank.
#pragma once

#include "launcher/options/options.h"
#include "runtime/comm/world.h"
#include "runtime/device/gpu.h"

#define FSDP_WHY_CPU_BYTES 1200

// This rank's, if the backend requires one; under `auto` none if no rank sees any, and then `why_cpu`
// (device_line.h). Called by all ranks.
fsdp_status fsdp_rank_gpu_choose(fsdp_world *world, const fsdp_options *options, fsdp_gpu *gpu,
                                 char why_cpu[FSDP_WHY_CPU_BYTES], fsdp_error *error);
