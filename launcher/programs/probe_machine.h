// Measures the machine that the ranks of this job run on: the probe (runtime/probe/probe.h) with the binding
// of training.
#pragma once

#include "launcher/train/binding.h"
#include "runtime/device/gpu.h"
#include "runtime/probe/probe.h"

typedef struct fsdp_probe_machine_config {
  fsdp_world *world;
  const fsdp_gpu *gpu; // this rank's; not present: the CPU
  bool bind;           // as --bind of training
  double seconds;      // that it may take, about
} fsdp_probe_machine_config;

// Fills an empty profile, its name and memory included: every rank gets the same. Every rank must call it,
// with no threads of its own yet; it leaves the rank bound to some share of its cores, so bind again for what
// follows. Errors as those of fsdp_probe_run.
fsdp_status fsdp_probe_machine(const fsdp_probe_machine_config *config, fsdp_device_profile *profile,
                               fsdp_error *error);
