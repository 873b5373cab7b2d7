// The progress board: where every rank of the job is, so that a waiting rank can report whom it waits for.
//
//   streams, main thread ──► own slot ─┐
//   peers of this node ────► slots ────┴─ shared memory of the node ──► watch (watch.h): reads, decides
//   ranks of other nodes ──► messages between nodes ────────────────────┘
//
// A slot has one writer per cache line and readers in other processes; everything is a relaxed atomic, since
// a reader asks "has it moved?" and never orders memory by it. Without a board (one rank, ranks as threads)
// writers write to a slot without readers, which saves them the check.
#pragma once

#include "runtime/base/stream.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What a rank is doing outside its instructions.
typedef enum fsdp_activity {
  FSDP_ACTIVITY_STARTING,
  FSDP_ACTIVITY_LOADING,
  FSDP_ACTIVITY_TRAINING,
  FSDP_ACTIVITY_EVALUATING,
  FSDP_ACTIVITY_SAVING,
  FSDP_ACTIVITY_FINISHING,
  FSDP_ACTIVITY_LEFT, // no longer waited for
  FSDP_ACTIVITY_COUNT
} fsdp_activity;

// One lane per stream, and one for the main thread, which takes part in the world's exchanges.
#define FSDP_LANE_MAIN  FSDP_STREAM_COUNT
#define FSDP_LANE_COUNT (FSDP_STREAM_COUNT + 1)

// An instruction of a step as one number: step and list position; 0 is none. fsdp_place_* take it apart.
typedef uint64_t fsdp_place;
static inline fsdp_place fsdp_place_of(int64_t step, int position) {
  return ((uint64_t)step << 24) | (uint64_t)(position + 1);
}
static inline int64_t fsdp_place_step(fsdp_place place) {
  return (int64_t)(place >> 24);
}
static inline int fsdp_place_position(fsdp_place place) {
  return (int)(place & 0xffffff) - 1;
}

typedef struct fsdp_board_lane {
  _Alignas(64) _Atomic uint64_t current; // place of the instruction under way
  _Atomic uint64_t finished;             // place of the last complete one
  _Atomic uint32_t progress;             // changes with any progress of this lane
  _Atomic uint32_t waits;                // for peers, asleep
} fsdp_board_lane;

typedef struct fsdp_board_slot {
  _Alignas(64) _Atomic uint64_t beat; // of the watch thread
  _Atomic uint64_t marks;             // fsdp_progress_count
  _Atomic uint64_t exchanges;         // exchanges of the world that this rank has reached
  _Atomic int64_t first_step;         // step of the run before this process's first
  _Atomic int32_t activity;
  _Atomic int32_t process; // its id on its node; 0: not started, or ended
  fsdp_board_lane lanes[FSDP_LANE_COUNT];
} fsdp_board_slot;

// This process's slot, or the one without readers. Changes while no stream runs.
extern fsdp_board_slot *fsdp_board_mine;
extern fsdp_board_slot fsdp_board_nobody;

// ---- What writers call

static inline void fsdp_lane_move(fsdp_board_lane *lane) {
  uint32_t count = atomic_load_explicit(&lane->progress, memory_order_relaxed);
  atomic_store_explicit(&lane->progress, count + 1, memory_order_relaxed);
}
static inline void fsdp_lane_begin(fsdp_board_lane *lane, fsdp_place place) {
  atomic_store_explicit(&lane->current, place, memory_order_relaxed);
}
static inline void fsdp_lane_end(fsdp_board_lane *lane, fsdp_place place) {
  atomic_store_explicit(&lane->finished, place, memory_order_relaxed);
  atomic_store_explicit(&lane->current, 0, memory_order_relaxed);
  fsdp_lane_move(lane);
}
// NULL is allowed: a collective outside any program.
static inline void fsdp_lane_wait(fsdp_board_lane *lane, bool waits) {
  if (lane) atomic_store_explicit(&lane->waits, waits, memory_order_relaxed);
}
static inline void fsdp_board_enter(fsdp_activity activity) {
  atomic_store_explicit(&fsdp_board_mine->activity, (int32_t)activity, memory_order_relaxed);
}

// Before the first step of this process, which continues after step `first_step` of the run.
static inline void fsdp_board_start_steps(int64_t first_step) {
  atomic_store_explicit(&fsdp_board_mine->first_step, first_step, memory_order_relaxed);
  fsdp_board_enter(FSDP_ACTIVITY_TRAINING);
}

// ---- What readers see

// A slot at one moment, as nodes send it to each other.
typedef struct fsdp_board_view {
  uint64_t beat, marks, exchanges;
  int64_t first_step;
  int32_t activity, process;
  struct {
    fsdp_place current, finished;
    uint32_t progress, waits;
  } lanes[FSDP_LANE_COUNT];
} fsdp_board_view;

void fsdp_board_read(const fsdp_board_slot *slot, fsdp_board_view *view);
void fsdp_board_write(fsdp_board_slot *slot, const fsdp_board_view *view);

// Whether anything but the heartbeat has moved from one to the other.
bool fsdp_board_moved(const fsdp_board_view *before, const fsdp_board_view *after);

// The step of the run that a rank is in, 0 before the first.
int64_t fsdp_board_step(const fsdp_board_view *view);

// The stream that waits for peers at the earliest instruction: on a GPU later collectives on other streams,
// which wait for that one, look the same. If no stream waits, the main thread's lane if it does, else -1.
int fsdp_board_waiting_lane(const fsdp_board_view *view);

// What the watch knows of a rank when it decides that the job is stuck.
typedef enum fsdp_rank_state {
  FSDP_RANK_ALIVE,
  FSDP_RANK_SILENT,      // no heartbeat for the time limit: stopped, or its machine hangs
  FSDP_RANK_UNREACHABLE, // no message from any rank of its node
  FSDP_RANK_ENDED,       // its process is gone
  FSDP_RANK_LEFT
} fsdp_rank_state;

typedef struct fsdp_board_rank {
  int rank;
  fsdp_board_view view; // the last that is known
  fsdp_rank_state state;
  const char *host;
} fsdp_board_rank;

// How messages name the instruction at a list position: "all_gather of model.layers.3" into `text`; all ranks
// have the same list.
typedef void (*fsdp_board_namer)(const void *owner, int position, char *text, size_t bytes);

// Sets it; NULL before `owner` is destroyed: messages then give numbers only.
void fsdp_board_set_namer(fsdp_board_namer namer, const void *owner);

// Who waits for whom and where, as part of a sentence: "rank 3 (host b) waits at instruction 412, all_gather
// of model.layers.3, step 17; rank 1 (host a) last finished 398, ...". `self` is the index of the one that
// reports; if it does not wait, another rank's wait is reported.
void fsdp_board_explain(const fsdp_board_rank *ranks, int count, int self, char *text, size_t bytes);
