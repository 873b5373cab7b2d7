#include "launcher/train/replicas.h"

#include "runtime/base/check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// ---- Comparison

static const uint64_t *digest_at(const fsdp_mesh *mesh, const uint64_t *digests, int count, int shard,
                                 int replica) {
  int rank = replica * mesh->size[FSDP_AXIS_FSDP] + shard;
  return digests + (int64_t)rank * count;
}

// Marks the replicas of the largest group that agrees on a digest; none where two groups are as large.
static void find_agreement(const fsdp_mesh *mesh, const uint64_t *digests, int count, fsdp_drift *drift) {
  int replicas = mesh->size[FSDP_AXIS_DATA], largest = -1, rivals = 0;
  drift->agreement = 0;
  for (int a = 0; a < replicas; a++) {
    uint64_t mine = digest_at(mesh, digests, count, drift->shard, a)[drift->digest];
    int same = 0;
    bool seen = false;
    for (int b = 0; b < replicas; b++) {
      bool equal = digest_at(mesh, digests, count, drift->shard, b)[drift->digest] == mine;
      same += equal;
      seen = seen || (equal && b < a);
    }
    if (seen || same < drift->agreement) continue;
    rivals = same == drift->agreement ? rivals + 1 : 0;
    drift->agreement = same;
    largest = a;
  }
  uint64_t agreed = digest_at(mesh, digests, count, drift->shard, largest)[drift->digest];
  for (int b = 0; b < replicas; b++) {
    drift->agrees[b] =
        rivals == 0 && digest_at(mesh, digests, count, drift->shard, b)[drift->digest] == agreed;
  }
  if (rivals > 0) drift->agreement = 0;
}

void fsdp_replicas_compare(const fsdp_mesh *mesh, const uint64_t *digests, int count, fsdp_drift *drift) {
  drift->digest = -1;
  for (int digest = 0; digest < count; digest++) {
    for (int shard = 0; shard < mesh->size[FSDP_AXIS_FSDP]; shard++) {
      for (int replica = 1; replica < mesh->size[FSDP_AXIS_DATA]; replica++) {
        if (digest_at(mesh, digests, count, shard, replica)[digest] ==
            digest_at(mesh, digests, count, shard, 0)[digest])
          continue;
        drift->digest = digest;
        drift->shard = shard;
        find_agreement(mesh, digests, count, drift);
        return;
      }
    }
  }
}

// ---- The check

bool fsdp_replicas_present(const fsdp_plan *plan) {
  return plan->config.check && plan->program->mesh.size[FSDP_AXIS_DATA] > 1;
}

// "rank 5 (host b), rank 9 (host c)": those that do not agree, or all where none does. Returns their number.
static int list_ranks(const fsdp_mesh *mesh, const fsdp_drift *drift, const char *hosts, char *out,
                      size_t bytes) {
  enum { SHOWN = 8 };
  size_t used = 0;
  int listed = 0;
  for (int replica = 0; replica < mesh->size[FSDP_AXIS_DATA] && used < bytes; replica++) {
    if (drift->agrees[replica]) continue;
    int rank = replica * mesh->size[FSDP_AXIS_FSDP] + drift->shard;
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
  static const char *const parts[] = {"master parameters", "first moment (m)", "second moment (v)"};
  const fsdp_mesh *mesh = &plan->program->mesh;
  char *hosts = fsdp_alloc((size_t)world->size * FSDP_HOST_NAME_BYTES), ranks[512] = "";
  fsdp_world_gather(world, world->host, FSDP_HOST_NAME_BYTES, hosts);
  int listed = list_ranks(mesh, drift, hosts, ranks, sizeof ranks);
  free(hosts);
  const fsdp_unit *unit = &plan->units->units[fsdp_plan_digest_unit(plan, drift->digest)];
  char others[64] = "each have other bits";
  if (drift->agreement > 0) {
    snprintf(others, sizeof others, "differ%s from the %d that agree", listed == 1 ? "s" : "",
             drift->agreement);
  }
  return fsdp_fail(
      error, FSDP_ERR_PEER,
      "replicas differ after step %" PRId64
      ": %s of unit %s, shard %d of %d: %s %s; nothing of this step is saved: check that host's memory "
      "and network, and restart from the last checkpoint",
      step, parts[drift->digest % 3], *unit->path ? unit->path : "(root)", drift->shard,
      mesh->size[FSDP_AXIS_FSDP], ranks, others);
}

fsdp_status fsdp_replicas_check(fsdp_world *world, fsdp_executor *executor, int64_t step, fsdp_error *error) {
  const fsdp_plan *plan = fsdp_executor_config_of(executor)->plan;
  if (!fsdp_replicas_present(plan)) return FSDP_OK;
  int count = fsdp_plan_digest_count(plan);
  uint64_t *mine = fsdp_alloc((size_t)count * sizeof *mine);
  uint64_t *all = fsdp_alloc((size_t)world->size * (size_t)count * sizeof *all);
  fsdp_drift drift = {
      .agrees = fsdp_alloc_zeroed((size_t)plan->program->mesh.size[FSDP_AXIS_DATA], sizeof *drift.agrees)};
  fsdp_executor_run_check(executor, mine);
  fsdp_world_gather(world, mine, count * (int64_t)sizeof *mine, all);
  fsdp_replicas_compare(&plan->program->mesh, all, count, &drift);
  fsdp_status status = drift.digest < 0 ? FSDP_OK : fail_drift(world, plan, &drift, step, error);
  free(drift.agrees);
  free(all);
  free(mine);
  return status;
}
