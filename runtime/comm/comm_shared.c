#include "runtime/comm/comm_shared.h"

#include "runtime/base/check.h"
#include "runtime/base/descriptors.h"
#include "runtime/base/job.h"
#include "runtime/base/size.h"
#include "runtime/exchange/comm_sum.h"
#include "runtime/watch/board.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

// An all-reduce of so few bytes (scalars) goes through the control block and meets once.
#define SMALL_BYTES 64

// Where a buffer begins: an address (threads) or an offset in an arena (processes).
typedef struct place {
  fsdp_space space;
  uintptr_t at;
} place;

typedef struct member {
  _Alignas(64) place place;
  unsigned char small[2][SMALL_BYTES]; // by turn, as a slow peer may still read the call before
} member;

struct fsdp_shared_control {
  _Atomic uint64_t arrivals;
  _Atomic uint32_t generation; // meetings that are complete; what sleepers sleep on
  member members[];
};

typedef struct direct_comm {
  fsdp_comm base;
  fsdp_shared_control *control;
  const fsdp_arenas *arenas; // NULL: threads
  int *peer_files;
  uint32_t meetings;     // that this rank has come to
  int turn;              // of `small`
  fsdp_board_lane *lane; // of the call under way
  fsdp_comm_sum sum;
  unsigned char *values; // one tile of a peer's
} direct_comm;

int64_t fsdp_shared_control_bytes(int size) {
  return (int64_t)(sizeof(fsdp_shared_control) + (size_t)size * sizeof(member));
}

// Waits until every rank of the group has come.
static void meet(direct_comm *self) {
  fsdp_shared_control *control = self->control;
  uint32_t mine = ++self->meetings;
  uint64_t arrived = atomic_fetch_add(&control->arrivals, 1) + 1;
  int private_flag = self->arenas ? 0 : FUTEX_PRIVATE_FLAG;
  if (arrived % (uint64_t)self->base.size == 0) {
    atomic_store(&control->generation, mine);
    syscall(SYS_futex, &control->generation, FUTEX_WAKE | private_flag, INT_MAX, NULL, NULL, 0);
    return;
  }
  // A peer that never comes is the watch's business, which ends the job (watch.h).
  for (;;) {
    uint32_t seen = atomic_load(&control->generation);
    if ((int32_t)(seen - mine) >= 0) break;
    fsdp_lane_wait(self->lane, true);
    syscall(SYS_futex, &control->generation, FUTEX_WAIT | private_flag, seen, NULL, NULL, 0);
  }
  fsdp_lane_wait(self->lane, false);
}

static void publish(direct_comm *self, const void *buffer, int64_t bytes) {
  place *mine = &self->control->members[self->base.rank].place;
  if (!self->arenas) {
    mine->at = (uintptr_t)buffer;
    return;
  }
  int64_t offset = 0;
  bool inside = fsdp_arenas_locate(self->arenas, buffer, bytes, &mine->space, &offset);
  FSDP_CHECK(inside, "a buffer of a collective of %lld bytes lies in no arena", (long long)bytes);
  mine->at = (uintptr_t)offset;
}

// Copies bytes [offset, offset + bytes) of what `peer` has published.
static void copy_from(direct_comm *self, int peer, int64_t offset, void *destination, int64_t bytes) {
  const place *source = &self->control->members[peer].place;
  uintptr_t at = source->at + (uintptr_t)offset;
  if (self->arenas) {
    const int file = self->peer_files[peer * FSDP_SPACE_COUNT + (int)source->space];
    if (!fsdp_read_at(file, (int64_t)at, destination, bytes))
      FSDP_JOB_FAIL("pread", "a peer's arena could not be read: %s", strerror(errno));
  } else {
    memcpy(destination, (const void *)at, (size_t)bytes);
  }
}

// The same bytes at a readable address: in place if possible, else copied to the tile of values.
static const void *view_of(direct_comm *self, int peer, int64_t offset, int64_t bytes) {
  const place *source = &self->control->members[peer].place;
  uintptr_t at = source->at + (uintptr_t)offset;
  if (!self->arenas) return (const void *)at;
  if (peer == self->base.rank) return self->arenas->memory[source->space] + at;
  copy_from(self, peer, offset, self->values, bytes);
  return self->values;
}

// output[0 .. numel) = sum over ranks, in their order, of elements [first, first + numel) of what they
// published. `output` may be this rank's own part of it.
static void sum_ranks(direct_comm *self, int64_t first, int64_t numel, fsdp_dtype dtype, void *output) {
  int64_t width = fsdp_dtype_bytes(dtype);
  for (int64_t done = 0; done < numel; done += FSDP_COMM_SUM_TILE_ELEMS) {
    int64_t count = fsdp_min_i64(FSDP_COMM_SUM_TILE_ELEMS, numel - done);
    for (int r = 0; r < self->base.size; r++) {
      const void *values = view_of(self, r, (first + done) * width, count * width);
      fsdp_comm_sum_add(&self->sum, r == 0, values, count, dtype);
    }
    fsdp_comm_sum_store(&self->sum, (char *)output + done * width, count, dtype);
  }
}

static void direct_all_gather(fsdp_comm *comm, const fsdp_collective *call) {
  direct_comm *self = (direct_comm *)comm;
  self->lane = call->lane;
  int64_t slot = call->numel * fsdp_dtype_bytes(call->dtype);
  char *whole = call->output;
  publish(self, call->input, slot);
  meet(self);
  for (int k = 0; k < comm->size; k++) {
    // From the next rank on, so that ranks read different peers at a time.
    int peer = (comm->rank + k) % comm->size;
    char *destination = whole + peer * slot;
    if (destination == call->input) continue;
    if (k == 0) {
      memcpy(destination, call->input, (size_t)slot);
    } else {
      copy_from(self, peer, 0, destination, slot);
    }
  }
  meet(self);
}

static void direct_reduce_scatter(fsdp_comm *comm, const fsdp_collective *call) {
  direct_comm *self = (direct_comm *)comm;
  self->lane = call->lane;
  int64_t slot = call->numel * fsdp_dtype_bytes(call->dtype);
  const char *whole = call->input;
  char *own = (char *)(uintptr_t)whole + comm->rank * slot, *output = call->output;
  // Peers read their slots of my input: until they have, the sum can only go to my own slot or outside.
  bool later = output != own && output >= whole && output < whole + comm->size * slot;
  publish(self, whole, comm->size * slot);
  meet(self);
  sum_ranks(self, comm->rank * call->numel, call->numel, call->dtype, later ? own : output);
  meet(self);
  if (later) memmove(output, own, (size_t)slot);
}

// Few values: those of all ranks lie in the control block, and every rank sums them. One meeting is enough:
// the next call uses the other turn, and no rank can be two calls ahead.
static void small_all_reduce(direct_comm *self, const fsdp_collective *call, int64_t bytes) {
  member *members = self->control->members;
  self->turn = 1 - self->turn;
  memcpy(members[self->base.rank].small[self->turn], call->output, (size_t)bytes);
  meet(self);
  for (int r = 0; r < self->base.size; r++) {
    fsdp_comm_sum_add(&self->sum, r == 0, members[r].small[self->turn], call->numel, call->dtype);
  }
  fsdp_comm_sum_store(&self->sum, call->output, call->numel, call->dtype);
}

// Every rank sums its own segment, then reads the others'.
static void direct_all_reduce(fsdp_comm *comm, const fsdp_collective *call) {
  direct_comm *self = (direct_comm *)comm;
  self->lane = call->lane;
  int64_t width = fsdp_dtype_bytes(call->dtype), bytes = call->numel * width;
  if (bytes <= SMALL_BYTES) {
    small_all_reduce(self, call, bytes);
    return;
  }
  int64_t segment = fsdp_round_up((call->numel + comm->size - 1) / comm->size, 16);
  publish(self, call->output, bytes);
  meet(self);
  for (int k = 0; k < comm->size; k++) {
    int peer = (comm->rank + k) % comm->size;
    int64_t first = fsdp_min_i64(call->numel, peer * segment);
    int64_t numel = fsdp_min_i64(call->numel - first, segment);
    char *place_in_mine = (char *)call->output + first * width;
    if (k == 0) {
      sum_ranks(self, first, numel, call->dtype, place_in_mine);
      meet(self);
    } else {
      copy_from(self, peer, first * width, place_in_mine, numel * width);
    }
  }
  meet(self);
}

static void direct_destroy(fsdp_comm *comm) {
  direct_comm *self = (direct_comm *)comm;
  for (int i = 0; self->peer_files && i < comm->size * FSDP_SPACE_COUNT; i++) {
    if (self->peer_files[i] >= 0) close(self->peer_files[i]);
  }
  if (self->arenas) munmap(self->control, (size_t)fsdp_shared_control_bytes(comm->size));
  free(self->peer_files);
  free(self->values);
  free(self);
}

fsdp_comm *fsdp_shared_create(const fsdp_shared_config *config) {
  static const fsdp_comm_table table = {.name = "direct",
                                        .run = {[FSDP_ALL_GATHER] = direct_all_gather,
                                                [FSDP_REDUCE_SCATTER] = direct_reduce_scatter,
                                                [FSDP_ALL_REDUCE] = direct_all_reduce},
                                        .destroy = direct_destroy};
  FSDP_CHECK(config->size >= 2 && config->rank >= 0 && config->rank < config->size, "rank %d of %d",
             config->rank, config->size);
  direct_comm *self = fsdp_alloc_zeroed(1, sizeof *self);
  self->base = (fsdp_comm){.table = &table, .rank = config->rank, .size = config->size};
  self->control = config->control;
  self->arenas = config->arenas;
  self->values = fsdp_alloc(FSDP_COMM_SUM_TILE_ELEMS * sizeof(float));
  if (config->arenas) {
    size_t files = (size_t)config->size * FSDP_SPACE_COUNT;
    self->peer_files = fsdp_alloc(files * sizeof *self->peer_files);
    memcpy(self->peer_files, config->peer_files, files * sizeof *self->peer_files);
  }
  return &self->base;
}
