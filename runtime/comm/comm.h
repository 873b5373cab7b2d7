// Communicators: the collectives of one group of ranks, as a table of functions.
//
//   all-gather      every rank's slot to every rank:      out = slot 0 | slot 1 | ... | slot F-1
//   reduce-scatter  sum over ranks of own slot of in:     out = sum of slots `rank`
//   all-reduce      sum over ranks, everywhere:           in place
//
// A call is work in its stream's order: what follows it there finds its buffers free and its output complete.
// If the calling thread is the stream (a CPU worker), that is when the call returns; if the device has queues
// (`stream` is set), the call only enqueues. Every rank of the group makes the same calls in the same order;
// a communicator is used by one thread at a time. Nothing is allocated in a call.
//
//   communicator   returns    how it sums                                     the same call again
//   self           at once    it copies                                       the same bits
//   shared memory  complete  in fp32, in the order of ranks, rounded once    the same bits
//   messages       complete  in fp32, in the order of ranks, rounded once    the same bits
//   NCCL           enqueued   as the algorithm does that the library chooses  the same bits with the same
//                             (order, and where bf16 is rounded)              ranks, links and NCCL settings
//
// Few values of more than 64 ranks are added by messages in blocks of 64, and then block to block
// (small_sum.h). After an all-reduce all ranks hold the same bits. No rank waits forever: the watch (watch.h)
// ends a job whose ranks do not arrive.
#pragma once

#include "runtime/base/access.h"
#include "runtime/base/dtype.h"
#include "runtime/watch/board.h"

typedef struct fsdp_comm fsdp_comm;

// Communicators that a process makes, at most.
#define FSDP_COMMS_MAX 32

// The group that a rank joins: its ranks, this rank's place among them, and which of the equal groups it is.
typedef struct fsdp_comm_group {
  int color, rank, size;
  bool gathers; // it makes all-gathers and nothing else
} fsdp_comm_group;

// The communicators of a process, in the order of the groups that they were made for.
typedef struct fsdp_comms {
  fsdp_comm *comm[FSDP_COMMS_MAX];
  int count;
} fsdp_comms;

typedef struct fsdp_collective {
  const void *input; // all-gather: own slot; reduce-scatter: F slots; all-reduce: not used
  // all-gather: F slots (input may be the own slot in it); reduce-scatter: one slot, apart from the input or
  // anywhere inside it at a slot's start; all-reduce: read and written
  void *output;
  int64_t numel;                  // of one slot; all-reduce: of the whole
  fsdp_dtype dtype;               // sums: fp32 or bf16
  fsdp_access_recorder *recorder; // NULL unless traced
  void *stream;                   // CUDA stream, NULL on the CPU
  // What messages name: the stream's lane of the board and the instruction's place; NULL and 0: none.
  fsdp_board_lane *lane;
  fsdp_place place;
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

// Report what each collective reads and writes to the access trace; for groups of several ranks.
void fsdp_all_gather_report(const fsdp_comm *comm, const fsdp_collective *call);
void fsdp_reduce_scatter_report(const fsdp_comm *comm, const fsdp_collective *call);
void fsdp_all_reduce_report(const fsdp_collective *call);

// A group of one rank: copies if input and output differ, nothing else. `copy` copies `bytes` from the call's
// input to its output, in the order of its stream.
fsdp_comm *fsdp_comm_self(void);
fsdp_comm *fsdp_comm_self_with(void (*copy)(const fsdp_collective *call, int64_t bytes));

// NULL is allowed.
void fsdp_comm_destroy(fsdp_comm *comm);
void fsdp_comms_destroy(fsdp_comms *comms);
