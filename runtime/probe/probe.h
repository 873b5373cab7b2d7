// The probe: measures the device profile of the machine at hand (runtime/plan/price/device_profile.h).
//
// The real kernels and communicators run on the streams of a real session, on operands of the shapes of
// training steps, which take turns so that they are in caches no more than a step's are: weights and what the
// forward has saved are not, what the op before has written is. On a CPU it measures for 1, 2, 4, ... ranks
// of each node, which compute at the same time while the others sleep; where ranks share cores, on which they
// take turns, only collectives. On a GPU, which computes for one rank, all of them measure once.
//
//   for each number of ranks:
//   bind ─► session ─► collectives ─► copies, contention ─► ops, also in steps ─► attention, products
//     ─► sustained
//
// A machine's rates change from second to second: on a CPU, ops and products are measured in three sweeps,
// which are alike, and the median of each counts.
//
// With little time (less than ten seconds for each number of ranks) only every other size is measured, and
// products, attention and ops only in the default element type of the device: fp32 on a CPU, bf16 on a GPU.
//
// No time of a whole step enters: from a profile of single operations, steps are priced. What caches hold
// when an op begins depends on the ops before it: on a CPU the rates of ops that memory bounds are put right
// by timelines of steps of two small models.
#pragma once

#include "runtime/comm/world.h"
#include "runtime/device/gpu.h"
#include "runtime/plan/price/device_profile.h"

// The least that a measurement needs: below it, too few shapes would be known.
#define FSDP_PROBE_SECONDS_MIN 1

typedef struct fsdp_probe_config {
  fsdp_world *world;
  const fsdp_gpu *gpu; // NULL or not present: the CPU
  double seconds;      // to aim at: what is measured in any case may take longer
  int cores;           // of the node, for all its ranks; the least of all nodes counts
  // Binds the calling thread as training on `ranks` ranks of each node would, and returns the number of
  // threads that it may use. Ranks of a node beyond them stay unbound. Every rank calls it.
  int (*bind)(void *context, int ranks);
  void *bind_context;
} fsdp_probe_config;

// Fills an empty profile; its name and memory are the caller's. Every rank must call it, and all get the same
// profile. FSDP_ERR_CAPACITY if there is no memory for the operands, FSDP_ERR_PEER if the GPU cannot be
// used, or communicators could not be made.
fsdp_status fsdp_probe_run(const fsdp_probe_config *config, fsdp_device_profile *profile, fsdp_error *error);
