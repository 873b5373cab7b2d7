// Worlds whose ranks are threads of one process, and the links between them, which count: for tests and
// benchmarks of exchanges among many ranks. They have no watch and no communicators.
#pragma once

#include "runtime/comm/world.h"

typedef struct fsdp_inproc_links fsdp_inproc_links;

typedef struct fsdp_link_counts {
  int64_t sent, received;             // messages
  int64_t sent_bytes, received_bytes; // of these
  int peers;                          // other ranks that it has sent to, since the start
} fsdp_link_counts;

// Of `size` ranks.
fsdp_inproc_links *fsdp_inproc_links_create(int size);
void fsdp_inproc_links_destroy(fsdp_inproc_links *links); // when all threads are done; NULL is allowed

// The link of a rank, for one thread at a time.
fsdp_link fsdp_inproc_link(fsdp_inproc_links *links, int rank);

// What a rank has sent and received since the start; on its own thread, or when that is done.
fsdp_link_counts fsdp_inproc_link_counts(const fsdp_inproc_links *links, int rank);

typedef struct fsdp_inproc_job {
  int size, ranks_per_node;                       // the last node may have fewer
  void (*run)(fsdp_world *world, void *argument); // each rank's, on a thread of its own
  void *argument;
} fsdp_inproc_job;

// Runs all ranks to their end. What each has sent, that which making the world takes included, goes into
// counts[size] unless it is NULL.
void fsdp_inproc_job_run(const fsdp_inproc_job *job, fsdp_link_counts *counts);
