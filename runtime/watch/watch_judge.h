// What a watch makes of what it knows: whether the job can continue, which rank is the cause, and how long
// this node gives way to one that knows more.
#pragma once

#include "runtime/watch/board.h"

// Heartbeats are at least so far apart.
#define FSDP_WATCH_BEAT_MS 150

// What this process has observed of a rank that it hears of.
typedef struct fsdp_watch_seen {
  fsdp_board_view view;
  int64_t beat_ms, moved_ms; // when they last changed
  int rank, node;            // node: its lowest rank
  bool local;                // of this node
  int order;                 // how many nodes hear of it from closer by
  const char *host;
  int handle; // pidfd of a rank of this node; -1: none
  bool ended;
  uint64_t suspect_beat; // its heartbeat when this rank began to give way to others
} fsdp_watch_seen;

// What a rank knows of those that it hears of, and what it decides by.
typedef struct fsdp_watch_known {
  fsdp_watch_seen *ranks;           // ascending
  int count, self;                  // self: this rank's index
  int node;                         // its lowest rank
  int64_t spread_ms;                // until what one node knows is known to all; 0: all hear of each other
  int64_t started_ms, elsewhere_ms; // elsewhere_ms: when others have last moved
  int64_t limit_ms;
  bool leaving, failed, follows; // failed: a call of this rank; follows: as another rank has ended
  bool of_daemon;                // started by orted, and not on mpirun's node
} fsdp_watch_known;

// Whether it is no longer waited for.
bool fsdp_watch_has_left(const fsdp_watch_seen *rank);

// Why the job ends.
typedef enum fsdp_watch_verdict {
  FSDP_VERDICT_NONE,
  FSDP_VERDICT_FAILED, // a call of this rank
  FSDP_VERDICT_ENDED,  // a rank of this node
  FSDP_VERDICT_SILENT, // a rank shows no sign of life for the time limit
  FSDP_VERDICT_STUCK   // nothing moves for the time limit
} fsdp_watch_verdict;

// By what is known at `now`.
fsdp_watch_verdict fsdp_watch_judge(const fsdp_watch_known *self, int64_t now);
fsdp_rank_state fsdp_watch_state_of(const fsdp_watch_known *self, const fsdp_watch_seen *rank, int64_t now);

// Whether it is a rank of this node without a heartbeat that is still to leave, also one that has come to the
// run's end; and one of those but this rank, NULL: none.
bool fsdp_watch_is_stopped(const fsdp_watch_known *self, const fsdp_watch_seen *rank, int64_t now);
const fsdp_watch_seen *fsdp_watch_find_stopped(const fsdp_watch_known *self, int64_t now);

// For how long this node gives way before it reports.
int64_t fsdp_watch_courtesy_ms(const fsdp_watch_known *self, fsdp_watch_verdict why, int64_t now);

// For how long it has given way since `since_ms`, in the time of the slowest: of a process that the machine
// does not run, none has passed, unless that lasts so long that it is missed itself.
int64_t fsdp_watch_waited_ms(const fsdp_watch_known *self, int64_t since_ms, int64_t now);

// Whether mpirun cannot reach all of its daemons: a node sends nothing, or it has left while this rank is
// still blocked, and not by a stopped rank of its own node.
bool fsdp_watch_is_cut_off(const fsdp_watch_known *self, fsdp_watch_verdict why, int64_t now);

// Whether another node reports why the job ends, of which a rank at the run's end gets no mail: a rank there
// has left, and so knows who of its node has not; mpirun has begun to end this node's ranks; or all ranks
// have come to the end and none of this node is stopped: then another's is, or mpirun's reports a cut link.
bool fsdp_watch_is_reported_elsewhere(const fsdp_watch_known *self, fsdp_watch_verdict why, int64_t now);

// When anything in the job has last moved, as far as it is known here.
int64_t fsdp_watch_last_moved_ms(const fsdp_watch_known *self);
