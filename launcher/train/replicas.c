#include "launcher/train/replicas.h"

#include "runtime/base/check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <xxhash.h>

// ---- Comparison

// The ranks that should agree with this one on what lies over `axes`; the caller frees *ranks.
static fsdp_peers replicas_of(fsdp_world *world, const fsdp_mesh *mesh, fsdp_axis_set axes, int **ranks) {
  int count = fsdp_mesh_group_size(mesh, axes);
  *ranks = fsdp_alloc((size_t)count * sizeof **ranks);
  for (int i = 0; i < count; i++) (*ranks)[i] = fsdp_mesh_group_member(mesh, axes, world->rank, i);
  return fsdp_world_among(world, *ranks, count);
}

// The first digest from `first` on that lies over axes which no digest before it does.
static int next_axes(const fsdp_digests *mine, int first) {
  for (int d = first; d < mine->count; d++) {
    int before = 0;
    while (before < d && mine->axes[before] != mine->axes[d]) before++;
    if (before == d) return d;
  }
  return mine->count;
}

// Whether this rank's replicas over the axes of digest `like` have equal digests there, by a hash of them.
static bool hashes_agree(fsdp_world *world, const fsdp_digests *mine, int like) {
  int *ranks;
  fsdp_peers replicas = replicas_of(world, mine->mesh, mine->axes[like], &ranks);
  uint64_t hash = 0;
  for (int d = like; d < mine->count; d++)
    if (mine->axes[d] == mine->axes[like]) hash = XXH64(&mine->values[d], sizeof mine->values[d], hash);
  int64_t bounds[2] = {(int64_t)hash, (int64_t)~hash}; // the least of both is the least and the greatest hash
  fsdp_exchange_reduce(&replicas, FSDP_REDUCE_MIN, bounds, 2);
  free(ranks);
  return bounds[0] == ~bounds[1];
}

// The first digest over the axes of digest `like` in which this rank's replicas differ, or count.
static int first_difference(fsdp_world *world, const fsdp_digests *mine, int like) {
  int *ranks, first = mine->count;
  fsdp_peers replicas = replicas_of(world, mine->mesh, mine->axes[like], &ranks);
  int64_t *bounds = fsdp_alloc(2 * (size_t)mine->count * sizeof *bounds);
  for (int d = 0; d < mine->count; d++) {
    bool compared = mine->axes[d] == mine->axes[like];
    bounds[2 * d] = compared ? (int64_t)mine->values[d] : 0;
    bounds[2 * d + 1] = ~bounds[2 * d];
  }
  fsdp_exchange_reduce(&replicas, FSDP_REDUCE_MIN, bounds, 2 * mine->count);
  for (int d = mine->count - 1; d >= 0; d--)
    if (bounds[2 * d] != ~bounds[2 * d + 1]) first = d;
  free(bounds);
  free(ranks);
  return first;
}

int fsdp_replicas_majority(const uint64_t *digests, int replicas, bool *agrees) {
  int largest = 0, agreement = 0, rivals = 0;
  for (int a = 0; a < replicas; a++) {
    int same = 0;
    bool seen = false;
    for (int b = 0; b < replicas; b++) {
      bool equal = digests[b] == digests[a];
      same += equal;
      seen = seen || (equal && b < a);
    }
    if (seen || same < agreement) continue;
    rivals = same == agreement ? rivals + 1 : 0;
    agreement = same;
    largest = a;
  }
  for (int b = 0; b < replicas; b++) agrees[b] = rivals == 0 && digests[b] == digests[largest];
  return rivals == 0 ? agreement : 0;
}

// The first rank of the group that differs gathers the digest, judges, and tells all ranks.
static void find_agreement(fsdp_world *world, const fsdp_digests *mine, fsdp_drift *drift) {
  int *ranks;
  fsdp_peers replicas = replicas_of(world, mine->mesh, mine->axes[drift->digest], &ranks);
  uint64_t *digests = fsdp_alloc((size_t)replicas.size * sizeof *digests);
  fsdp_exchange_gather_first(&replicas, &mine->values[drift->digest], (int64_t)sizeof *digests, digests);
  if (world->rank == drift->rank)
    drift->agreement = fsdp_replicas_majority(digests, replicas.size, drift->agrees);
  fsdp_world_broadcast_from(world, drift->rank, &drift->agreement, (int64_t)sizeof drift->agreement);
  fsdp_world_broadcast_from(world, drift->rank, drift->agrees,
                            replicas.size * (int64_t)sizeof *drift->agrees);
  free(digests);
  free(ranks);
}

void fsdp_replicas_compare(fsdp_world *world, const fsdp_digests *mine, fsdp_drift *drift) {
  bool agree = true;
  for (int like = next_axes(mine, 0); like < mine->count; like = next_axes(mine, like + 1))
    agree = hashes_agree(world, mine, like) && agree;
  drift->digest = -1;
  if (fsdp_world_min(world, agree) != 0) return;
  int first = mine->count;
  for (int like = next_axes(mine, 0); like < mine->count; like = next_axes(mine, like + 1)) {
    int found = first_difference(world, mine, like);
    if (found < first) first = found;
  }
  drift->digest = (int)fsdp_world_min(world, first);
  bool is_first =
      first == drift->digest && fsdp_mesh_group_of(mine->mesh, mine->axes[first], world->rank).rank == 0;
  drift->rank = (int)fsdp_world_min(world, is_first ? world->rank : world->size);
  find_agreement(world, mine, drift);
}

// ---- The check

bool fsdp_replicas_present(const fsdp_plan *plan) {
  return plan->config.check && fsdp_units_have_replicas(plan->units);
}

// "rank 5 (host b), rank 9 (host c)": those that do not agree, or all if none does. Returns their number.
static int list_ranks(const fsdp_units *units, const fsdp_unit *unit, const fsdp_drift *drift,
                      const fsdp_world *world, char *out, size_t bytes) {
  enum { SHOWN = 8 };
  size_t used = 0;
  int listed = 0;
  for (int replica = 0; replica < unit->replica_count && used < bytes; replica++) {
    if (drift->agrees[replica]) continue;
    int rank = fsdp_mesh_group_member(&units->mesh, unit->replica_axes, drift->rank, replica);
    if (listed++ < SHOWN) {
      used += (size_t)snprintf(out + used, bytes - used, "%s%s", used ? ", " : "",
                               fsdp_world_rank_name(world, rank).text);
    }
  }
  if (listed > SHOWN && used < bytes) snprintf(out + used, bytes - used, " and %d more", listed - SHOWN);
  return listed;
}

static fsdp_status fail_drift(fsdp_world *world, const fsdp_plan *plan, const fsdp_drift *drift, int64_t step,
                              fsdp_error *error) {
  const fsdp_units *units = plan->units;
  const fsdp_slot *slot;
  const fsdp_unit *unit = &units->units[fsdp_plan_digest_unit(plan, drift->digest, &slot)];
  char ranks[512] = "";
  int listed = list_ranks(units, unit, drift, world, ranks, sizeof ranks);
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
      step, slot->title, *unit->path ? unit->path : "(root)",
      fsdp_mesh_group_of(&units->mesh, unit->shard_axes, drift->rank).rank, unit->shard_count, ranks, others);
}

fsdp_status fsdp_replicas_check(fsdp_world *world, fsdp_executor *executor, int64_t step, fsdp_error *error) {
  const fsdp_plan *plan = fsdp_executor_config_of(executor)->plan;
  int count = fsdp_plan_digest_count(plan);
  uint64_t *mine = fsdp_alloc((size_t)count * sizeof *mine);
  fsdp_axis_set *axes = fsdp_alloc((size_t)count * sizeof *axes);
  for (int d = 0; d < count; d++)
    axes[d] = plan->units->units[fsdp_plan_digest_unit(plan, d, NULL)].replica_axes;
  fsdp_drift drift = {.agrees = fsdp_alloc_zeroed((size_t)world->size, sizeof *drift.agrees)};
  fsdp_executor_run_check(executor, mine);
  const fsdp_digests digests = {&plan->program->mesh, axes, mine, count};
  fsdp_replicas_compare(world, &digests, &drift);
  fsdp_status status = drift.digest < 0 ? FSDP_OK : fail_drift(world, plan, &drift, step, error);
  free(drift.agrees);
  free(axes);
  free(mine);
  return status;
}
