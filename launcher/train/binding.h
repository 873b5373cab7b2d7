// Binding: every rank of a node bound to a fair, contiguous share of the node's allowed cores.
//
//   allowed cores   0 1 2 3 | 4 5 6 7 | 8 9 ...     in the machine's own order, so that neighbours share
//   local ranks        0    |    1    |  2          caches and memory
//
// mpirun pins a lone rank to one core; so what is allowed is read from the process that started the ranks
// (its affinity, inside the control group's), not from the rank. If a launcher has divided the node already,
// each rank keeps what it was given. More ranks than cores share them, one core per rank. With GPUs a rank
// has its share of the cores that are nearest to its own; memory that it touches first is allocated there
// too.
#pragma once

#include "runtime/comm/world.h"

#include <stdbool.h>
#include <stdio.h>

typedef struct fsdp_binding {
  int core_count; // of this rank
  int node_cores; // allowed on this node
  bool bound;     // false if nothing could be bound: the rank runs where the system puts it
  char cores[48]; // "0-3", as the system numbers processors
  char gpu[32];   // PCI address of its GPU; "": none
} fsdp_binding;

typedef struct fsdp_binding_config {
  bool bind;           // false: only say where the rank may run
  const char *gpu_bus; // PCI address: of the allowed cores only those next to it count; NULL: no GPU
  int local_ranks;     // the first ones of each node share its cores, the others stay as they are; 0: all
} fsdp_binding_config;

// True in ranks that Open MPI's mpirun has started and pinned by its own rules, from their environment; false
// in those of srun, which has given each what the user asked for.
bool fsdp_binding_is_pinned_by_mpirun(void);

// FSDP_ERR_PEER if srun has started several tasks that do not know of each other: each would train alone.
fsdp_status fsdp_binding_check_tasks(const fsdp_world *world, fsdp_error *error);

// Binds the calling thread, and so every thread that it starts from now on. Call before any thread is made;
// every rank must call it. A later call divides the same cores anew.
void fsdp_binding_bind(fsdp_world *world, const fsdp_binding_config *config, fsdp_binding *binding);

// Prints who runs where, in one line from rank 0; every rank must call it.
void fsdp_binding_print(fsdp_world *world, const fsdp_binding *mine, FILE *out);
