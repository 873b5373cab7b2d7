// Communicators over NCCL, for the CUDA device, and the watchdog that looks after them.
//
//   unique id (rank 0) ─► world ─► world's communicator ─► split into those of the groups
//
// A collective is enqueued and returns. Every one that is under way is known to the watchdog, a thread that
// looks a few times a second: an asynchronous error of a communicator ends the whole job. What is under way
// is shown on the board, so that the watch ends a job without progress for the time limit (watch.h).
#pragma once

#include "runtime/base/choices.h"
#include "runtime/comm/world.h"

// Ranks whose start one rank, a root, leads: a communicator of more has several roots, from NCCL 2.23 on.
#define FSDP_NCCL_ROOT_RANKS 128

typedef struct fsdp_nccl_wish {
  fsdp_nccl_register registers;
  fsdp_nccl_ctas ctas;
  bool shares_gpu; // with another rank
} fsdp_nccl_wish;

// What all ranks then do, and a line that says it and why not more.
typedef struct fsdp_nccl_use {
  bool registers; // the arena is memory of fsdp_nccl_alloc, registered with every communicator
  bool windows;   // as a symmetric window
  bool policies;  // in windows gathers by copy engines; other collectives with few multiprocessors
  char text[256];
} fsdp_nccl_use;

typedef struct fsdp_nccl_config {
  const fsdp_comm_group *groups; // as in fsdp_comms_config
  int group_count;
  const fsdp_arenas *arenas; // of the CUDA device; buffers of collectives lie there
  int timeout_s;             // of the start, and of a step without progress
  int root_ranks;            // that one root starts; 0: FSDP_NCCL_ROOT_RANKS
  fsdp_nccl_use use;
} fsdp_nccl_config;

// Loads the library, which ranks of several need; FSDP_ERR_PEER, with a remedy, where the machine has none or
// one that is too old, or in a build without NCCL. May be called again.
fsdp_status fsdp_nccl_load(fsdp_error *error);

// Every rank must call it, after fsdp_nccl_load, and gets the same: what all their libraries can do. Windows
// need NCCL 2.28 in all of them and in this build, one node, and a GPU per rank.
fsdp_nccl_use fsdp_nccl_choose(fsdp_world *world, const fsdp_nccl_wish *wish);

// The communicators of this rank's groups; every rank of several must call it, after fsdp_nccl_load. A group
// of one rank copies and nothing else. FSDP_ERR_PEER with NCCL's reason. Destroy them (fsdp_comms_destroy)
// before the device.
fsdp_status fsdp_nccl_comms(fsdp_world *world, const fsdp_nccl_config *config, fsdp_comms *comms,
                            fsdp_error *error);

// A group of one rank on the CUDA device.
fsdp_comm *fsdp_cuda_comm_self(void);

// Memory that communicators can register; NULL if none is left.
void *fsdp_nccl_alloc(int64_t bytes);
void fsdp_nccl_free(void *memory);
