// Communicators: the collectives of one group of ranks, as a table of functions.
//
//   all-gather      every rank's slot to every rank:      out = slot 0 | slot 1 | ... | slot F-1
//   reduce-scatter  sum over ranks of own slot of in:     out = sum of slots `rank`
//   all-reduce      sum over ranks, everywhere:           in place
//
// What their operands are, and where these may share bytes, stands in runtime/base/collectives.def.
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
#include "runtime/base/collective.h"
#include "runtime/base/dtype.h"
#include "runtime/watch/board.h"

typedef struct fsdp_comm fsdp_comm;

// Communicators that a process makes, at most.
#define FSDP_COMMS_MAX 32

// The group that a rank joins: its ranks, this rank's place among them, and which of the equal groups it is.
typedef struct fsdp_comm_group {
  int color, rank, size;
  bool moves; // its collectives sum nothing
} fsdp_comm_group;

// The communicators of a process, in the order of the groups that they were made for.
typedef struct fsdp_comms {
  fsdp_comm *comm[FSDP_COMMS_MAX];
  int count;
} fsdp_comms;

typedef struct fsdp_collective {
  const void *input;              // not used where there is one operand
  void *output;                   // or the one operand, read and written
  int64_t numel;                  // of the smaller operand: a slot, unless both are whole
  fsdp_dtype dtype;               // sums: fp32 or bf16
  fsdp_access_recorder *recorder; // NULL unless traced
  void *stream;                   // CUDA stream, NULL on the CPU
  // What messages name: the stream's lane of the board and the instruction's place; NULL and 0: none.
  fsdp_board_lane *lane;
  fsdp_place place;
} fsdp_collective;

typedef void fsdp_collective_function(fsdp_comm *comm, const fsdp_collective *call);

typedef struct fsdp_comm_table {
  const char *name; // "self", "direct", "messages"
  fsdp_collective_function *run[FSDP_COLLECTIVE_COUNT];
  void (*destroy)(fsdp_comm *comm);
} fsdp_comm_table;

struct fsdp_comm {
  const fsdp_comm_table *table;
  int rank, size; // in the group
};

// Runs (or enqueues) a collective, and reports what it reads and writes to the access trace.
void fsdp_comm_run(fsdp_comm *comm, fsdp_collective_kind kind, const fsdp_collective *call);

// A group of one rank: copies if input and output differ, nothing else. `copy` copies `bytes` from the call's
// input to its output, in the order of its stream.
fsdp_comm *fsdp_comm_self(void);
fsdp_comm *fsdp_comm_self_with(void (*copy)(const fsdp_collective *call, int64_t bytes));

// NULL is allowed.
void fsdp_comm_destroy(fsdp_comm *comm);
void fsdp_comms_destroy(fsdp_comms *comms);
