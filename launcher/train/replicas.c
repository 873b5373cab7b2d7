#include "launcher/train/replicas.h"

#include "runtime/base/check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// ---- Comparison

// The digests of all ranks, and over which axes the ranks that must agree on each lie.
typedef struct comparison {
  const fsdp_mesh *mesh;
  const fsdp_axis_set *axes; // by digest
  const uint64_t *digests;
  int count;
} comparison;

// The digest of replica `replica` among those of `rank`.
static uint64_t digest_of(const comparison *c, int digest, int rank, int replica) {
  int owner = fsdp_mesh_group_member(c->mesh, c->axes[digest], rank, replica);
  return c->digests[(int64_t)owner * c->count + digest];
}

// Marks the replicas of the largest group that agrees on a digest; none if two groups are as large.
static void find_agreement(const comparison *c, fsdp_drift *drift) {
  int replicas = fsdp_mesh_group_size(c->mesh, c->axes[drift->digest]), largest = -1, rivals = 0;
  drift->agreement = 0;
  for (int a = 0; a < replicas; a++) {
    uint64_t mine = digest_of(c, drift->digest, drift->rank, a);
    int same = 0;
    bool seen = false;
    for (int b = 0; b < replicas; b++) {
      bool equal = digest_of(c, drift->digest, drift->rank, b) == mine;
      same += equal;
      seen = seen || (equal && b < a);
    }
    if (seen || same < drift->agreement) continue;
    rivals = same == drift->agreement ? rivals + 1 : 0;
    drift->agreement = same;
    largest = a;
  }
  uint64_t agreed = digest_of(c, drift->digest, drift->rank, largest);
  for (int b = 0; b < replicas; b++) {
    drift->agrees[b] = rivals == 0 && digest_of(c, drift->digest, drift->rank, b) == agreed;
  }
  if (rivals > 0) drift->agreement = 0;
}

// Whether `rank` is the first of its group and some rank of the group has different bits.
static bool differs(const comparison *c, int digest, int rank) {
  if (fsdp_mesh_group_of(c->mesh, c->axes[digest], rank).rank != 0) return false;
  int replicas = fsdp_mesh_group_size(c->mesh, c->axes[digest]);
  for (int replica = 1; replica < replicas; replica++)
    if (digest_of(c, digest, rank, replica) != digest_of(c, digest, rank, 0)) return true;
  return false;
}

void fsdp_replicas_compare(const fsdp_mesh *mesh, const fsdp_axis_set *axes, const uint64_t *digests,
                           int count, fsdp_drift *drift) {
  comparison c = {mesh, axes, digests, count};
  int ranks = fsdp_mesh_ranks(mesh);
  drift->digest = -1;
  for (int digest = 0; digest < count; digest++) {
    for (int rank = 0; rank < ranks; rank++) {
      if (!differs(&c, digest, rank)) continue;
      drift->digest = digest;
      drift->rank = rank;
      find_agreement(&c, drift);
      return;
    }
  }
}

// ---- The check

bool fsdp_replicas_present(const fsdp_plan *plan) {
  return plan->config.check && fsdp_units_have_replicas(plan->units);
}

// "rank 5 (host b), rank 9 (host c)": those that do not agree, or all if none does. Returns their number.
static int list_ranks(const fsdp_units *units, const fsdp_unit *unit, const fsdp_drift *drift,
                      const char *hosts, char *out, size_t bytes) {
  enum { SHOWN = 8 };
  size_t used = 0;
  int listed = 0;
  for (int replica = 0; replica < unit->replica_count && used < bytes; replica++) {
    if (drift->agrees[replica]) continue;
    int rank = fsdp_mesh_group_member(&units->mesh, unit->replica_axes, drift->rank, replica);
    if (listed++ < SHOWN) {
      used += (size_t)snprintf(out + used, bytes - used, "%srank %d (host %s)", used ? ", " : "", rank,
                               hosts + (int64_t)rank * FSDP_HOST_NAME_BYTES);
    }
  }
  if (listed > SHOWN && used < bytes) snprintf(out + used, bytes - used, " and %d more", listed - SHOWN);
  return listed;
}

static fsdp_status fail_drift(fsdp_world *world, const fsdp_plan *plan, const fsdp_drift *drift, int64_t step,
                              fsdp_error *error) {
  const fsdp_optimizer *optimizer = plan->optimizer;
  const fsdp_units *units = plan->units;
  const fsdp_unit *unit = &units->units[fsdp_plan_digest_unit(plan, drift->digest)];
  char *hosts = fsdp_alloc((size_t)world->size * FSDP_HOST_NAME_BYTES), ranks[512] = "";
  fsdp_world_gather(world, world->host, FSDP_HOST_NAME_BYTES, hosts);
  int listed = list_ranks(units, unit, drift, hosts, ranks, sizeof ranks);
  free(hosts);
  char others[64] = "each have different bits";
  if (drift->agreement > 0) {
    snprintf(others, sizeof others, "differ%s from the %d that agree", listed == 1 ? "s" : "",
             drift->agreement);
  }
  return fsdp_fail(
      error, FSDP_ERR_PEER,
      "replicas differ after step %" PRId64
      ": %s of unit %s, shard %d of %d: %s %s; nothing of this step is saved: check that host's memory "
      "and network, and restart from the last checkpoint",
      step, optimizer->slots[drift->digest % optimizer->slot_count].title,
      *unit->path ? unit->path : "(root)",
      fsdp_mesh_group_of(&units->mesh, unit->shard_axes, drift->rank).rank, unit->shard_count, ranks, others);
}

fsdp_status fsdp_replicas_check(fsdp_world *world, fsdp_executor *executor, int64_t step, fsdp_error *error) {
  const fsdp_plan *plan = fsdp_executor_config_of(executor)->plan;
  if (!fsdp_replicas_present(plan)) return FSDP_OK;
  int count = fsdp_plan_digest_count(plan);
  uint64_t *mine = fsdp_alloc((size_t)count * sizeof *mine);
  uint64_t *all = fsdp_alloc((size_t)world->size * (size_t)count * sizeof *all);
  fsdp_axis_set *axes = fsdp_alloc((size_t)count * sizeof *axes);
  for (int d = 0; d < count; d++) axes[d] = plan->units->units[fsdp_plan_digest_unit(plan, d)].replica_axes;
  fsdp_drift drift = {.agrees = fsdp_alloc_zeroed((size_t)world->size, sizeof *drift.agrees)};
  fsdp_executor_run_check(executor, mine);
  fsdp_world_gather(world, mine, count * (int64_t)sizeof *mine, all);
  fsdp_replicas_compare(&plan->program->mesh, axes, all, count, &drift);
  fsdp_status status = drift.digest < 0 ? FSDP_OK : fail_drift(world, plan, &drift, step, error);
  free(drift.agrees);
  free(axes);
  free(all);
  free(mine);
  return status;
}
