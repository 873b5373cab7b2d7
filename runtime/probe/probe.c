#include "runtime/probe/probe.h"

#include "kernels/kernels.h"
#include "runtime/base/clock.h"
#include "runtime/base/size.h"
#include "runtime/exec/gpu_choice.h"
#include "runtime/probe/run.h"

#include <math.h>
#include <stdlib.h>

#define UNITS             4000.0 // measurements of one number of ranks, about
#define OTHER_SHARE       0.4    // of products' time, for the element type that is not the device's default
#define COLLECTIVES_SHARE 0.08   // of the time, for a number of ranks of which only collectives are measured
#define COARSE_S          10     // less time for a number of ranks measures every other size

// The counts of ranks that measure, ascending: 1, 2, 4, ... and all of a node. A GPU computes for one rank.
static int list_counts(const fsdp_probe_config *config, bool cuda, int counts[32]) {
  const int all = config->world->local_size;
  int count = 0;
  for (int ranks = 1; ranks < all && !cuda; ranks *= 2) counts[count++] = ranks;
  counts[count++] = all;
  return count;
}

// What is measured once, where as many ranks compute as can without sharing a core.
static void measure_machine(probe *self) {
  probe_launches(self);
  probe_copies(self);
  probe_contention(self);
}

// One element type, until `until_s`. Sweeps but the last fill a profile that is thrown away.
static void measure_dtype(probe *self, double until_s) {
  fsdp_device_profile *profile = self->profile;
  probe_sweeps sweeps = {.wanted = self->coarse || self->device == FSDP_OP_CUDA ? 1 : PROBE_SWEEPS_MAX};
  const double elapsed_s = probe_elapsed(self);
  self->sweeps = &sweeps;
  self->drift->next_s = 0;
  for (; sweeps.sweep < sweeps.wanted; sweeps.sweep++) {
    const bool last = sweeps.sweep == sweeps.wanted - 1;
    sweeps.next = 0;
    self->profile = last ? profile : fsdp_device_profile_create();
    probe_ops(self);
    probe_in_step(self);
    probe_attention(self);
    probe_head(self);
    probe_grouped(self);
    probe_products(self, elapsed_s + (until_s - elapsed_s) / sweeps.wanted);
    if (!last) fsdp_device_profile_destroy(self->profile);
  }
  probe_drift_end(self);
  free(sweeps.seconds);
  self->profile = profile;
  self->sweeps = NULL;
}

// What one rank computes, in both element types until `until_s`.
static void measure_ops(probe *self, double until_s) {
  const double left_s = fmax(0, until_s - probe_elapsed(self));
  measure_dtype(self, self->coarse ? until_s : until_s - OTHER_SHARE * left_s);
  if (self->device == FSDP_OP_CUDA) probe_sustained(self);
  if (self->coarse) return;
  probe_fill(self, self->dtype == FSDP_F32 ? FSDP_BF16 : FSDP_F32);
  measure_dtype(self, until_s);
}

// Of the GPU, by all that use it; 0 without one.
static int64_t used_bytes(const probe *self) {
  fsdp_device *device = self->session.device;
  return device->table->used_bytes ? device->table->used_bytes(device) : 0;
}

// What a GPU's memory holds beside the arena at the end, when kernels and libraries are loaded: of several
// ranks their communicators, which came between `opened_bytes` and `connected_bytes`, and the rest. The rank
// with most counts. Nothing is said of a GPU that ranks share.
static void set_reserve(const probe *self, int64_t connected_bytes) {
  const int64_t arena = self->session.device->arenas.bytes[FSDP_SPACE_DEVICE];
  int64_t comms = self->group_count ? connected_bytes - self->opened_bytes - arena : 0;
  int64_t context = used_bytes(self) - arena - comms;
  if (self->gpu->sharers > 1) comms = context = 0;
  self->profile->context_bytes = (double)fsdp_max_i64(0, -fsdp_world_min(self->world, -context));
  if (self->group_count)
    self->profile->communicator_bytes =
        (double)fsdp_max_i64(0, -fsdp_world_min(self->world, -comms) / self->group_count);
}

// Ranks that share cores take turns, each at the rate that it has alone: only their collectives are measured.
static fsdp_status measure_count(probe *self, int ranks, bool machine, double until_s, fsdp_error *error) {
  fsdp_status status = probe_open(self, ranks, error);
  if (status) return status;
  probe_collectives(self);
  const int64_t connected_bytes = used_bytes(self);
  probe_fill(self, self->dtype); // sums of sums are no operands
  if (machine) measure_machine(self);
  if (!self->crowded) measure_ops(self, until_s);
  if (self->device == FSDP_OP_CUDA) set_reserve(self, connected_bytes);
  probe_close(self);
  return FSDP_OK;
}

// Whether the GPU can be used: what it lacks is said here and not by the first call that fails.
static fsdp_status open_gpu(const fsdp_probe_config *config, fsdp_op_gpu *target, int64_t *unused,
                            fsdp_error *error) {
  error->status = FSDP_OK;
  fsdp_gpu_open(config->gpu, unused, target, error);
  if (fsdp_world_share_error(config->world, error) == FSDP_OK) fsdp_gpu_agree(config->world, target);
  return error->status;
}

// Of each kind the mean over measurements and ranks; with the drift, which is none of its causes: deviations
// that are independent add by their squares. Of a kind of which a rank could repeat no measurement often
// enough nothing is said: no spread is not a spread of 0.
static void set_spread(const probe *self) {
  fsdp_profile_spread *to = &self->profile->spread;
  double *const of[2][2] = {{&to->compute_low, &to->compute_high},
                            {&to->collective_low, &to->collective_high}};
  const probe_spread *drift = &self->spread[PROBE_DRIFT];
  const double looks = fmax(1, drift->count);
  for (int kind = PROBE_COMPUTE; kind <= PROBE_COLLECTIVE; kind++) {
    const probe_spread *s = &self->spread[kind];
    const double count = fmax(1, s->count);
    if (!fsdp_world_min(self->world, !self->active || s->count > 0)) continue;
    *of[kind][0] = probe_mean(self, exp(-hypot(s->low / count, drift->low / looks)));
    *of[kind][1] = probe_mean(self, exp(hypot(s->high / count, drift->high / looks)));
  }
}

fsdp_status fsdp_probe_run(const fsdp_probe_config *config, fsdp_device_profile *profile, fsdp_error *error) {
  const int64_t start_ns = fsdp_now_ns();
  const bool cuda = config->gpu && config->gpu->present;
  if (!config->world->even_nodes)
    return fsdp_fail(
        error, FSDP_ERR_OPTION,
        "nodes have different numbers of ranks: start equally many on each (mpirun --map-by ppr:N:node)");
  fsdp_op_gpu target = {0};
  int64_t unused = 0;
  if (cuda && open_gpu(config, &target, &unused, error) != FSDP_OK) return error->status;
  // What is measured, and how often, must be the same on every rank.
  const int cores = (int)fsdp_world_min(config->world, config->cores);
  probe_spread spread[PROBE_SPREAD_COUNT] = {{0}};
  probe_drift drift = {0};
  probe self = {.world = config->world,
                .gpu = config->gpu,
                .gpu_bytes = fsdp_world_min(config->world, cuda ? config->gpu->total_bytes : 0),
                .opened_bytes = cuda ? config->gpu->total_bytes - unused : 0,
                .seconds = config->seconds,
                .cores = cores,
                .bind = config->bind,
                .bind_context = config->bind_context,
                .profile = profile,
                .spread = spread,
                .drift = &drift,
                .start_ns = start_ns,
                .device = cuda ? FSDP_OP_CUDA : FSDP_OP_CPU,
                .target = target};
  profile->device = self.device;
  profile->processors = cores;
  profile->capability = target.capability / 10.0;
  profile->tiles = cuda;
  int counts[32], computing = 0; // counts whose ranks have cores to themselves: the first ones
  const int count = list_counts(config, cuda, counts);
  for (int i = 0; i < count; i++) computing += cuda || counts[i] <= cores;
  self.coarse = config->seconds / count < COARSE_S;
  const double sweeps = cuda || self.coarse ? 1 : PROBE_SWEEPS_MAX;
  self.unit_s = fmin(0.05, fmax(0.0005, config->seconds / count / UNITS / sweeps));
  const double compute_s = config->seconds * (1 - COLLECTIVES_SHARE * (count - computing));
  for (int i = 0; i < count; i++) {
    // What is left of the computing counts' time, divided by those that are left.
    const double elapsed_s = probe_elapsed(&self);
    const double until_s = elapsed_s + (compute_s - elapsed_s) / fmax(1, computing - i);
    const bool machine = i == computing - 1;
    fsdp_status status = measure_count(&self, counts[i], machine, until_s, error);
    if (status) return status;
  }
  set_spread(&self);
  return FSDP_OK;
}
