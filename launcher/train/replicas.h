// Replicas: whether the ranks that hold the same shard hold the same bits.
//
//   check section: digests of every shard's masters and moments ─► the least and the greatest hash of them
//   among replicas ─► where these differ, of each digest ─► one digest of all, on the group's first rank
//
// A bit that flips in one replica's memory, or a collective that gives ranks different sums, makes replicas
// drift apart; nothing else would show it, and a checkpoint would be put together from slices of all of them.
#pragma once

#include "runtime/comm/world.h"
#include "runtime/exec/executor.h"

// Where replicas differ: the first digest that does, and for each replica whether it is in the largest group
// that agrees. If no group is larger than every other, none is.
typedef struct fsdp_drift {
  int digest;    // in the order of the check section (runtime/plan/plan.h), or -1: all agree
  int rank;      // the lowest of the ranks that should agree
  bool *agrees;  // by replica; the caller's, of as many as there are ranks
  int agreement; // how many agree
} fsdp_drift;

// What is compared: this rank's digests; ranks that differ in axes[digest] alone should agree on it.
typedef struct fsdp_digests {
  const fsdp_mesh *mesh;
  const fsdp_axis_set *axes;
  const uint64_t *values;
  int count;
} fsdp_digests;

// Compares them; every rank must call it. Fills `drift`, whose `agrees` is given, alike on all ranks.
void fsdp_replicas_compare(fsdp_world *world, const fsdp_digests *mine, fsdp_drift *drift);

// Of one digest of every replica: how many the largest group that agrees has, and who is in it. 0, and none,
// if two groups are as large.
int fsdp_replicas_majority(const uint64_t *digests, int replicas, bool *agrees);

// Whether the plan has replicas and a check section.
bool fsdp_replicas_present(const fsdp_plan *plan);

// Called by all ranks between steps, after step `step`, of a plan that has them. FSDP_ERR_PEER, on all ranks
// alike, if replicas differ: it names the unit, the part, the shard and the ranks with their hosts.
fsdp_status fsdp_replicas_check(fsdp_world *world, fsdp_executor *executor, int64_t step, fsdp_error *error);
