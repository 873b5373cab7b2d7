// The watch: a thread of every process that knows the state of all ranks, and ends the job if it cannot
// continue.
//
//   each tick       own heartbeat to the board; which processes of this node have ended; who has moved
//   twice a second  one rank of each node sends the node's part of the board, and when anything in the job
//                   last moved, to the nodes that hear of it; 20 times while the job may be about to end
//
// Up to 65 nodes all hear of each other; of more, each of 2 log N others (hearing.h): a node that is gone is
// missed by these, what moves is known everywhere after log N mails, and so is the news that the job ends,
// which each node passes on. A rank reads no more of the board than the ranks that it hears of.
//
//   ends the job    if a process of this node has ended · if a rank gives no sign of life for the time
//                   limit · if this rank waits and nothing in the job has moved for the time limit
//
// A rank that works is never timed out by those that wait for it, as long as it moves: a complete
// instruction, a piece of a message, a chunk of a file (fsdp_progress_mark). The time in which this process
// itself was stopped does not count.
//
// One rank per node reports: it prints one message and notifies the nodes that it sends to. All ranks then
// leave by themselves, as the launcher may be out of reach: with FSDP_ERR_PEER, or with the failure's status.
// The reporting rank kills stopped ranks of its node. If other nodes cannot be reached, it also ends the
// node's mpirun or orted, which would wait forever.
#pragma once

#include "runtime/base/job.h"
#include "runtime/watch/board.h"

// Messages to single ranks, that neither block nor fail; used by the watch's thread alone.
typedef struct fsdp_mail {
  void *owner;
  // Sends a copy; false if the previous one to that rank is still under way.
  bool (*post)(void *owner, int rank, const void *data, int bytes);
  // The next received message, of at most `capacity` bytes; returns its bytes, or 0: none. *from is its
  // sender.
  int (*take)(void *owner, void *data, int capacity, int *from);
} fsdp_mail;

#define FSDP_WATCH_LIMIT_S 300 // until it is set
// The part of the limit that is kept for the end of a job: the message, the other ranks' exits, and on a cut
// link those of mpirun and its daemons, which end before their ranks. At most a fifth of the limit.
#define FSDP_WATCH_END_MS       2000
#define FSDP_WATCH_CIRCLE       65 // nodes that all hear of each other
#define FSDP_WATCH_FOLDER_BYTES 2048
#define FSDP_WATCH_ADVICE_BYTES 512

// What the processes of a node share; behind it lie a slot for every rank of the job, and whom to send mail
// to on every node.
typedef struct fsdp_watch_node {
  _Alignas(64) _Atomic uint32_t claimed; // 1 + the rank that reports
  _Atomic uint32_t said;                 // that its message is out
  _Atomic uint32_t over;                 // all others are notified: with which fsdp_status all leave
  _Atomic uint32_t asked;                // a rank of the node was asked to end (job.h)
  _Atomic int64_t limit_ms;
  _Atomic int64_t moved_ms;    // when anything last moved that other nodes know of, by the node's clock
  _Atomic uint32_t moves;      // and which move that was: more than those that its node knew of
  _Atomic uint32_t has_folder; // of error files
  _Atomic uint32_t has_advice;
  char folder[FSDP_WATCH_FOLDER_BYTES];
  char advice[FSDP_WATCH_ADVICE_BYTES];
} fsdp_watch_node;

typedef struct fsdp_watch_config {
  int rank, size;
  const int *node;          // by rank: its node, numbered by the lowest rank; not kept
  const char *const *hosts; // by rank; not kept
  int circle;               // 0: FSDP_WATCH_CIRCLE
  void *memory;             // of fsdp_watch_memory_bytes(size), zero at first, shared by the node's ranks
  const fsdp_mail *mail;    // NULL on one node; copied
} fsdp_watch_config;

typedef struct fsdp_watch fsdp_watch;

// The bytes of fsdp_watch_config.memory in a job of `size` ranks; only pages of ranks that are heard of are
// touched. And the bytes of the largest mail from a node of `node_ranks` ranks.
int64_t fsdp_watch_memory_bytes(int size);
int fsdp_watch_mail_bytes(int node_ranks);

// The slots behind `memory`, by rank.
fsdp_board_slot *fsdp_watch_slots(void *memory);

// What a message says about restarting: the program's advice, or to start again.
const char *fsdp_watch_advice(const fsdp_watch_node *node);

// Makes this rank's slot fsdp_board_mine and starts the thread. Every rank of the node must have its slot
// before anyone waits for another (the caller's exchange sees to that).
fsdp_watch *fsdp_watch_start(const fsdp_watch_config *config);

// The milliseconds after which a job is judged to have failed, so that it has ended after `seconds`; and the
// seconds of such a limit.
int64_t fsdp_watch_judged_ms(int seconds);
int fsdp_watch_limit_s(int64_t judged_ms);

// Without a watch (NULL) none of these does anything.
//
// Seconds without a sign of life or of progress after which the job has ended (--comm-timeout); 300 at first.
void fsdp_watch_set_limit(fsdp_watch *watch, int seconds);
// For the node's messages and its guard (guard.h): a sentence, without its stop, on how to go on after a
// failure; and the folder of the error file. Every rank may set each once; that of the node's lowest rank
// counts.
void fsdp_watch_set_advice(fsdp_watch *watch, const char *advice);
void fsdp_watch_set_folder(fsdp_watch *watch, const char *folder);
// The cause of the run's end is already reported; later exits of ranks are not: mpirun kills ranks that leave
// later than the first. Every rank calls it before it leaves with the status of a failed run.
void fsdp_watch_set_said(fsdp_watch *watch);

// From here on no mail is used, but for one that says so, and no rank is missed: every rank has reached the
// end. The watch still checks that this process leaves within the limit.
void fsdp_watch_leave(fsdp_watch *watch);
void fsdp_watch_stop(fsdp_watch *watch); // NULL is allowed
