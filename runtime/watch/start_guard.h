// The guard of one rank until it has joined the job: a small process that outlives it.
//
//   the rank has ended without a word         it names the rank, once per node and mpirun
//   mpirun has ended the rank, without a word the same, in a job of one node: that mpirun has ended the job
//   mpirun or orted is there seconds later    it ends that: Open MPI may wait without a limit for a rank that
//                                             was killed while it connected
//
// Where the node's guard has begun (guard.h), both may see the same end: fsdp_launcher_claim decides.
#pragma once

#include "runtime/watch/launcher_end.h"

#include <stdatomic.h>

// What is known of this process's end.
typedef struct fsdp_start_known {
  _Atomic bool asked, said; // mpirun has asked for it; it is reported
} fsdp_start_known;

typedef struct fsdp_start_guard {
  fsdp_launcher launcher;
  int claim;               // fsdp_launcher_claim's, which outlives this process as long as the guard does
  fsdp_start_known *known; // shared with the guard; stays
  int process;             // of the guard; -1: there is none
} fsdp_start_guard;

// Forks it, where mpirun has started this process. `seconds`: what mpirun gets at most to end a failed job.
// `one_node`: all ranks are on this one.
void fsdp_start_guard_begin(fsdp_start_guard *guard, int rank, const char *host, int seconds, bool one_node);

// Whether this process is to report why the job cannot start: no other process of its node has.
bool fsdp_start_guard_claim(const fsdp_start_guard *guard);

// The rank has joined.
void fsdp_start_guard_end(fsdp_start_guard *guard);
