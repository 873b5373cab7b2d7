// fsdp_train --auto: the fastest plan for the machine that the job runs on.
//
//   --profile, or a measurement ──► rank 0 searches ──► its choice as options ──► every rank
#pragma once

#include "launcher/options/options.h"
#include "runtime/comm/world.h"
#include "runtime/device/gpu.h"

// Sets the options of a plan that are not given, the same on every rank, and prints on rank 0 what was
// chosen. Every rank calls it, before it is bound to cores. FSDP_ERR_CAPACITY if nothing fits,
// FSDP_ERR_OPTION if what is given leaves no plan, errors of the profile's file or of the measurement: the
// same on every rank.
fsdp_status fsdp_auto_plan(fsdp_world *world, const fsdp_gpu *gpu, fsdp_options *options, fsdp_error *error);
