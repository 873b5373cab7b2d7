// Worlds whose ranks are threads of one process, for tests and benchmarks of exchanges among many ranks. They
// have no watch and no communicators.
#pragma once

#include "runtime/comm/world.h"
#include "runtime/exchange/link_inproc.h"

typedef struct fsdp_inproc_job {
  int size, ranks_per_node;                       // the last node may have fewer
  void (*run)(fsdp_world *world, void *argument); // each rank's, on a thread of its own
  void *argument;
} fsdp_inproc_job;

// Runs all ranks to their end. What each has sent, that which making the world takes included, goes into
// counts[size] unless it is NULL.
void fsdp_inproc_job_run(const fsdp_inproc_job *job, fsdp_link_counts *counts);
