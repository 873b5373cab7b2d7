// The world: the processes of a job, who they are, what they agree on at start-up, and their communicators.
//
// Under MPI it is MPI_COMM_WORLD; without MPI, or without mpirun, a world of one. Nothing here is for use
// inside a step but the communicators that fsdp_world_comms hands out.
#pragma once

#include "runtime/base/arenas.h"
#include "runtime/base/job.h"
#include "runtime/base/status.h"
#include "runtime/comm/comm.h"
#include "runtime/comm/watch.h"

typedef struct fsdp_world {
  int rank, size;
  int local_rank, local_size; // among the ranks of this node
  int node_index, node_count; // nodes are numbered by their lowest rank
  bool even_nodes;            // every node has local_size ranks, and ranks of a node are neighbours
  char host[FSDP_HOST_NAME_BYTES];
  int failed_rank; // whose error fsdp_world_share_error last handed out
  // Of several ranks: who looks after them, its part of the node's shared memory, and how it reaches others.
  fsdp_watch *watch;
  fsdp_mail mail;
  void *board;
  int64_t board_bytes;
} fsdp_world;

// Joins the job. FSDP_ERR_PEER if MPI gives no thread support. One world per process.
fsdp_status fsdp_world_create(int *argc, char ***argv, fsdp_world **world, fsdp_error *error);

// Seconds without progress after which the job ends (--comm-timeout); 300 until then.
void fsdp_world_set_comm_timeout(fsdp_world *world, int seconds);

// What messages about a failure say: that there is a checkpoint to resume from, and where the error file is.
void fsdp_world_set_saves(fsdp_world *world, bool saves);
void fsdp_world_set_error_folder(fsdp_world *world, const char *folder);

// Rank 0 prints why the run fails, and every rank leaves with that status. mpirun then kills ranks that are
// slower than the first, which is not to be reported. Every rank calls it before fsdp_world_destroy.
void fsdp_world_set_failed(fsdp_world *world);

// Leaves the job; every rank must call it. NULL is allowed.
void fsdp_world_destroy(fsdp_world *world);

// Waits, asleep, until every rank has called it.
void fsdp_world_barrier(fsdp_world *world);

// `bytes` of every rank, in the order of ranks, into out[size * bytes].
void fsdp_world_gather(fsdp_world *world, const void *mine, int64_t bytes, void *out);

// The sum of every rank's number.
int64_t fsdp_world_sum(fsdp_world *world, int64_t mine);

// The least of every rank's numbers.
int64_t fsdp_world_min(fsdp_world *world, int64_t mine);

// Replaces *data on every rank by rank 0's.
void fsdp_world_broadcast(fsdp_world *world, void *data, int64_t bytes);

// Rank 0's text, on every rank; the caller frees it. The others' text is ignored.
char *fsdp_world_broadcast_text(fsdp_world *world, const char *text);

// How messages name a rank: "rank 3 (host b)".
typedef struct fsdp_rank_name {
  char text[FSDP_HOST_NAME_BYTES + 32];
} fsdp_rank_name;

// The names of all ranks. Every rank must call it; the caller frees the result.
fsdp_rank_name *fsdp_world_rank_names(fsdp_world *world);

// Checks that every rank passes the same value (a hash of options, of the program, ...). If not, all ranks
// return FSDP_ERR_OPTION with a message that names `what` and the first rank that differs.
fsdp_status fsdp_world_agree(fsdp_world *world, const char *what, uint64_t value, fsdp_error *error);

// Shares what went wrong: every rank passes its own status (FSDP_OK: nothing) and message. All return the
// status of the lowest rank that failed, with that rank's message in `error`, so all leave together, and rank
// 0 may print it. If rank 0 has not failed, the message names the rank and its host.
fsdp_status fsdp_world_share_error(fsdp_world *world, fsdp_error *error);

typedef struct fsdp_comms_config {
  const fsdp_comm_group *groups; // that this rank joins; every rank names equally many, in the same order
  int group_count;
  const fsdp_arenas *arenas; // buffers of collectives lie there
  bool messages;             // send messages even where peers could be read directly (tests, benchmarks)
  int64_t piece_bytes;       // of messages, at most; 0: the default
} fsdp_comms_config;

// The communicators of this rank's groups: ranks of one node with shared arenas read each other's directly,
// others send messages. Every rank must call it. Destroy them before the device.
fsdp_status fsdp_world_comms(fsdp_world *world, const fsdp_comms_config *config, fsdp_comms *comms,
                             fsdp_error *error);
