// Direct collectives: ranks of one machine meet in a small shared block and read each other's buffers
// themselves.
//
//   control block   | arrivals, generation | rank 0: where its buffer is, small values | rank 1: ... |
//
//   call:  publish where my buffer is ─► meet ─► read the peers' ─► meet (my buffer may change again)
//
// Every byte moves once, straight to where it is needed: no library's buffers, no temporary but two tiles.
// Peers are threads, whose memory is at hand, or processes, whose arenas are files (arenas.h) that are read
// in place: mapping them would count a peer's pages as this process's memory. Ranks that wait sleep (futex).
#pragma once

#include "runtime/base/arenas.h"
#include "runtime/comm/comm.h"

typedef struct fsdp_shared_control fsdp_shared_control;

typedef struct fsdp_shared_config {
  int rank, size;
  // Zeroed memory of fsdp_shared_control_bytes(size), the same for all ranks of the group. Of processes it is
  // mapped, and owned by the communicator from now on.
  fsdp_shared_control *control;
  // Processes: this rank's arenas and by peer the descriptors of its arenas, size * FSDP_SPACE_COUNT of them,
  // owned by the communicator from now on (-1: none). Threads: NULL.
  const fsdp_arenas *arenas;
  const int *peer_files;
} fsdp_shared_config;

// Bytes of the control block of `size` ranks.
int64_t fsdp_shared_control_bytes(int size);

// The communicator of one rank; the caller owns it. `config` is copied, peer_files too.
fsdp_comm *fsdp_shared_create(const fsdp_shared_config *config);
