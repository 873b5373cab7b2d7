// Replicas: whether the ranks that hold the same shard hold the same bits.
//
//   check section: a digest of every shard's masters and moments ─► all ranks exchange them ─► compared
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
  bool *agrees;  // by replica; the caller's, of as many as there are
  int agreement; // how many agree
} fsdp_drift;

// Compares `digests` of all ranks, `count` each, in the order of ranks; ranks that differ in axes[digest]
// alone should agree on it. Fills `drift`, whose `agrees` is given.
void fsdp_replicas_compare(const fsdp_mesh *mesh, const fsdp_axis_set *axes, const uint64_t *digests,
                           int count, fsdp_drift *drift);

// Whether the plan has replicas and a check section.
bool fsdp_replicas_present(const fsdp_plan *plan);

// Called by all ranks between steps, after step `step`. FSDP_ERR_PEER, on all ranks alike, if replicas
// differ: it names the unit, the part, the shard and the ranks with their hosts.
fsdp_status fsdp_replicas_check(fsdp_world *world, fsdp_executor *executor, int64_t step, fsdp_error *error);
