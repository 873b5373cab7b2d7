// Communicators: the collectives of one group of ranks, as a table of functions.
//
//   all-gather      every rank's slot to every rank:      out = slot 0 | slot 1 | ... | slot F-1
//   reduce-scatter  sum over ranks of own slot of in:     out = sum of slots `rank`
//   all-reduce      sum over ranks, everywhere:           in place
//
// A call runs on the calling thread (a stream's worker) and returns when its buffers may be reused. Every
// rank of the group makes the same calls in the same order; a communicator is used by one thread at a time.
// Sums run in fp32 in a fixed order and are rounded once, so all ranks see the same bits and a run repeats.
// Nothing is allocated in a call.
#pragma once

#include "kernels/kernels.h"

typedef struct fsdp_comm fsdp_comm;

typedef struct fsdp_collective {
  const void *input; // all-gather: own slot; reduce-scatter: F slots; all-reduce: not used
  // all-gather: F slots (input may be the own slot in it); reduce-scatter: one slot, apart from the input or
  // anywhere inside it at a slot's start; all-reduce: read and written
  void *output;
  int64_t elems;     // of one slot; all-reduce: of the whole
  fsdp_dtype dtype;  // sums: fp32 or bf16
  fsdp_touch *touch; // NULL unless traced
  void *stream;      // CUDA stream, NULL on the CPU
  const char *unit;  // that it serves, for messages; NULL: none
  int64_t step;      // for messages
} fsdp_collective;

typedef struct fsdp_comm_table {
  const char *name; // "self", "direct", "messages"
  void (*all_gather)(fsdp_comm *comm, const fsdp_collective *call);
  void (*reduce_scatter)(fsdp_comm *comm, const fsdp_collective *call);
  void (*all_reduce)(fsdp_comm *comm, const fsdp_collective *call);
  void (*destroy)(fsdp_comm *comm);
} fsdp_comm_table;

struct fsdp_comm {
  const fsdp_comm_table *table;
  int rank, size; // in the group
};

// What each of them reads and writes, for the trace; those of several ranks.
void fsdp_collective_touch(const fsdp_collective *call, const void *address, int64_t bytes, int access);
void fsdp_all_gather_touch(const fsdp_comm *comm, const fsdp_collective *call);
void fsdp_reduce_scatter_touch(const fsdp_comm *comm, const fsdp_collective *call);
void fsdp_all_reduce_touch(const fsdp_collective *call);

// A group of one rank: copies where input and output differ, nothing else. `copy` copies `bytes` from the
// call's input to its output, in the order of its stream.
fsdp_comm *fsdp_comm_self(void);
fsdp_comm *fsdp_comm_self_with(void (*copy)(const fsdp_collective *call, int64_t bytes));

// NULL is allowed.
void fsdp_comm_destroy(fsdp_comm *comm);
