// The world: the processes of a job, who they are, what they agree on at start-up, and their communicators.
//
// Under MPI it is MPI_COMM_WORLD; without MPI, or without mpirun, a world of one. Nothing here is for use
// inside a step but the communicators that fsdp_world_comms hands out.
#pragma once

#include "runtime/base/arenas.h"
#include "runtime/base/job.h"
#include "runtime/base/status.h"
#include "runtime/comm/comm.h"
#include "runtime/exchange/exchange.h"
#include "runtime/watch/watch.h"

#include <stdio.h>

// Which rank is on which node; every rank knows it of all.
typedef struct fsdp_world_nodes {
  int *index;                          // by rank: of its node
  int *first;                          // by node: its lowest rank
  int *local_ranks;                    // of this node
  char (*hosts)[FSDP_HOST_NAME_BYTES]; // by node
} fsdp_world_nodes;

typedef struct fsdp_world {
  int rank, size;
  int local_rank, local_size; // among the ranks of this node
  int node_index, node_count; // nodes are numbered by their lowest rank
  bool even_nodes;            // every node has local_size ranks, and ranks of a node are neighbours
  char host[FSDP_HOST_NAME_BYTES];
  int failed_rank; // whose error fsdp_world_share_error last handed out
  fsdp_link link;  // to all ranks
  fsdp_world_nodes nodes;
  FILE *exchanges; // FSDP_EXCHANGES, on rank 0; NULL: none
  // Of several ranks: who looks after them, its part of the node's shared memory, and how it reaches others.
  fsdp_watch *watch; // is told limits and what to say (watch.h); NULL: this is the only rank
  fsdp_mail mail;
  void *board;
  int64_t board_bytes;
} fsdp_world;

// Joins the job. FSDP_ERR_PEER if MPI gives no thread support. One world per process.
fsdp_status fsdp_world_create(int *argc, char ***argv, fsdp_world **world, fsdp_error *error);

// Leaves the job; every rank must call it. NULL is allowed.
void fsdp_world_destroy(fsdp_world *world);

// Exchanges: every rank must make them, in the same order. A waiting rank sleeps, and the watch knows that it
// waits. A rank sends about log W messages (exchange.h).

// From here on rank 0 lists them in the file that FSDP_EXCHANGES names, if it does (bench/bench_exchanges.c).
void fsdp_world_list_exchanges(fsdp_world *world);

// Whether this rank wakes rarely while it waits for others: each wake takes some of a core, which ranks that
// are measured there lack. An exchange may then end two milliseconds later.
void fsdp_world_set_patient(fsdp_world *world, bool patient);

// Waits until every rank has called it.
void fsdp_world_barrier(fsdp_world *world);

// values[i] = the sum, the least or the greatest of all ranks' values[i].
void fsdp_world_reduce(fsdp_world *world, fsdp_reduction how, int64_t *values, int count);

// The same of one number.
int64_t fsdp_world_sum(fsdp_world *world, int64_t mine);
int64_t fsdp_world_min(fsdp_world *world, int64_t mine);
int64_t fsdp_world_max(fsdp_world *world, int64_t mine);

// Whether all ranks have the same values. differs[i]: the lowest rank whose value is not rank 0's; -1: none.
bool fsdp_world_compare(fsdp_world *world, const uint64_t *values, int count, int *differs);

// `bytes` of every rank, in the order of ranks, into out[size * bytes]: for a few bytes of each, at the
// start.
void fsdp_world_gather(fsdp_world *world, const void *mine, int64_t bytes, void *out);

// `bytes` of every rank of this node, in the order of ranks, into out[local_size * bytes].
void fsdp_world_gather_node(fsdp_world *world, const void *mine, int64_t bytes, void *out);

// For exchanges among some ranks (exchange.h): ranks[count] outlives the result. Every rank must call it,
// with the ranks of its own group or of one that it is not in.
fsdp_peers fsdp_world_among(fsdp_world *world, const int *ranks, int count);

// Replaces *data on every rank by rank 0's.
void fsdp_world_broadcast(fsdp_world *world, void *data, int64_t bytes);

// The same of rank `root`, which all ranks must name.
void fsdp_world_broadcast_from(fsdp_world *world, int root, void *data, int64_t bytes);

// Rank 0's text, on every rank; the caller frees it. The others' text is ignored.
char *fsdp_world_broadcast_text(fsdp_world *world, const char *text);

// How messages name a rank: "rank 3 (host b)".
typedef struct fsdp_rank_name {
  char text[FSDP_HOST_NAME_BYTES + 32];
} fsdp_rank_name;

// Needs no exchange.
fsdp_rank_name fsdp_world_rank_name(const fsdp_world *world, int rank);

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
