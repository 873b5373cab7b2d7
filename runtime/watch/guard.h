// The guard: a small process of each node that outlives its ranks, and ends the job if they no longer can.
//
//   ranks of the node ──► slots, in shared memory ─┐
//   the kernel ─────────► who has ended ───────────┴─► guard ─► one message, the ranks' end, mpirun's end
//
// It acts behind the watch (watch.h), and only if that has not:
//
//   ranks have ended without a report, or none has a heartbeat         it prints the report
//   the rank that reports still runs seconds later                     it kills the node's ranks
//   all have ended after a failure, but mpirun or orted still runs     it kills that
//   all have finished on several nodes, but mpirun or orted still runs it kills that, after the time limit
//
// mpirun does not wait for it where a job has failed: of ranks that are all killed at one time, its message
// may come a moment after mpirun's end. It calls no library that can wait, holds none of a rank's
// connections, and gives its terminal back when the ranks have ended, as mpirun waits for that where the run
// is complete.
#pragma once

#include "runtime/watch/watch.h"

typedef struct fsdp_guard_config {
  int rank, size;     // rank: the lowest of its node, of which the guard is a child
  const int *node;    // by rank: its node, numbered by the lowest rank
  const int *process; // by rank: its id on its node
  const char *host;
  void *memory; // fsdp_watch_config.memory
  // Every rank of the job is a child of mpirun or orted, which so have nothing else to wait for.
  bool owns_launcher;
} fsdp_guard_config;

// Forks the guard; it leaves by itself. Before this process starts its own watch.
void fsdp_guard_start(const fsdp_guard_config *config);
