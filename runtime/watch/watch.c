#include "runtime/watch/watch.h"

#include "runtime/base/clock.h"
#include "runtime/base/progress.h"
#include "runtime/base/size.h"
#include "runtime/base/status.h"
#include "runtime/watch/hearing.h"
#include "runtime/watch/launcher_end.h"
#include "runtime/watch/watch_judge.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

// If the thread sleeps longer than this beyond its tick, its process was stopped.
#define PAUSE_MS 1500
#define TICK_MS  200
#define MAIL_MS  500
// Both, while the job may be about to end: so that what one node knows is soon known to all.
#define URGENT_MS 50
#define LINGER_MS 1000
// After so long without a heartbeat of a rank another sends its node's mail.
#define SPEAKER_MS 1000
// For peers that were asked to leave; then they are ended.
#define LEAVE_MS 2000
// How often the end of the job is sent to all ranks, and to those that have not accepted it yet.
#define TELL_MS    20
#define TELLS      3
#define TELLS_LIVE 50

struct fsdp_watch {
  int rank;
  fsdp_hearing hearing;
  fsdp_watch_node *shared;
  fsdp_board_slot *slots;
  _Atomic int32_t *speakers; // by lowest rank of a node: whom to send mail to
  fsdp_mail mail;
  struct pollfd *polls;
  fsdp_board_rank *explained;
  unsigned char *buffer; // of one mail
  int buffer_bytes;
  int64_t ticked_ms, beaten_ms, mailed_ms;
  int64_t moved_ms;   // the last move of this node's ranks that is counted
  int64_t urgent_ms;  // until then ticks and mails are URGENT_MS apart
  int64_t suspect_ms; // since when it would speak; 0: it would not
  bool passes_on;     // that the job is over, as the first of its node
  int wake;           // eventfd
  pthread_t thread;
  pthread_mutex_t mutex; // what follows, as far as other threads write it
  bool stop, has_mail;
  fsdp_watch_known known;
  char failure[1200];
  fsdp_status failure_status;
};

// One mail: the state of the sender's node.
typedef struct mail_content {
  int32_t kind, count; // count views, each behind its rank; of MAIL_OVER the status to leave with
  uint32_t moves;      // which move is the last that the sender knows of (fsdp_watch_node)
  int32_t still_ms;    // for how long nothing has moved since
  struct entry {
    int32_t rank, unused;
    fsdp_board_view view;
  } entries[];
} mail_content;
enum { MAIL_BOARD = 1, MAIL_OVER = 2 };

static fsdp_watch *the_watch; // of this process, for fsdp_job_failed

int64_t fsdp_watch_memory_bytes(int size) {
  return (int64_t)sizeof(fsdp_watch_node) + size * (int64_t)sizeof(fsdp_board_slot) +
         fsdp_round_up(size * (int64_t)sizeof(int32_t), 64);
}

int fsdp_watch_mail_bytes(int node_ranks) {
  return (int)(sizeof(mail_content) + (size_t)node_ranks * sizeof(struct entry));
}

fsdp_board_slot *fsdp_watch_slots(void *memory) {
  return (fsdp_board_slot *)((fsdp_watch_node *)memory + 1);
}

const char *fsdp_watch_advice(const fsdp_watch_node *node) {
  return atomic_load(&node->has_advice) ? node->advice : "Start again";
}

// ---- Mail

// The node's lowest live rank sends its mail.
static bool is_speaker(const fsdp_watch *self, int64_t now) {
  for (int i = 0; i < self->known.self; i++) {
    const fsdp_watch_seen *other = &self->known.ranks[i];
    if (other->local && !other->ended && !fsdp_watch_has_left(other) && now - other->beat_ms < SPEAKER_MS)
      return false;
  }
  return true;
}

// A move of this node's ranks comes after all that are known here: so a node that hears of it takes the time
// from the first mail that says so, and not again from each that comes around, later by its way.
static void count_moves(fsdp_watch *self) {
  int64_t moved_ms = self->moved_ms;
  for (int i = 0; i < self->known.count; i++) {
    if (self->known.ranks[i].local) moved_ms = fsdp_max_i64(moved_ms, self->known.ranks[i].moved_ms);
  }
  if (moved_ms == self->moved_ms) return;
  self->moved_ms = moved_ms;
  atomic_fetch_add(&self->shared->moves, 1);
  if (moved_ms > atomic_load(&self->shared->moved_ms)) atomic_store(&self->shared->moved_ms, moved_ms);
}

// Sends this node's state to the nodes that hear of it.
static void post_board(fsdp_watch *self, int64_t now) {
  mail_content *mine = (mail_content *)self->buffer;
  count_moves(self);
  int64_t still_ms = now - fsdp_max_i64(self->known.started_ms, atomic_load(&self->shared->moved_ms));
  *mine = (mail_content){.kind = MAIL_BOARD,
                         .moves = atomic_load(&self->shared->moves),
                         .still_ms = (int32_t)fsdp_min_i64(still_ms, INT32_MAX)};
  for (int i = 0; i < self->known.count; i++) {
    if (!self->known.ranks[i].local) continue;
    struct entry *entry = &mine->entries[mine->count++];
    entry->rank = self->known.ranks[i].rank;
    fsdp_board_read(&self->slots[entry->rank], &entry->view);
  }
  int bytes = (int)(sizeof *mine + (size_t)mine->count * sizeof *mine->entries);
  for (int i = 0; i < self->known.count; i++) {
    const fsdp_watch_seen *rank = &self->known.ranks[i];
    if (rank->local || rank->rank != rank->node) continue;
    self->mail.post(self->mail.owner, atomic_load(&self->speakers[rank->node]), mine, bytes);
  }
}

// Asks every rank of the nodes that hear of this one to leave: the rank that reports for them may be stopped.
// Returns how many that show signs of life did not accept it, as the previous mail is still under way.
static int post_over(fsdp_watch *self, int status) {
  mail_content over = {.kind = MAIL_OVER, .count = status};
  int refused = 0;
  for (int i = 0; i < self->known.count; i++) {
    const fsdp_watch_seen *rank = &self->known.ranks[i];
    if (rank->local || self->mail.post(self->mail.owner, rank->rank, &over, (int)sizeof over)) continue;
    refused += fsdp_watch_state_of(&self->known, rank, self->ticked_ms) == FSDP_RANK_ALIVE;
  }
  return refused;
}

static void take_mail(fsdp_watch *self, int64_t now) {
  int from = 0, bytes;
  while ((bytes = self->mail.take(self->mail.owner, self->buffer, self->buffer_bytes, &from)) > 0) {
    const mail_content *got = (const mail_content *)self->buffer;
    if (got->kind == MAIL_OVER) {
      // Not the last that says so, but the first.
      if (atomic_exchange(&self->shared->over, (uint32_t)got->count) == 0) self->passes_on = true;
      continue;
    }
    for (int i = 0; i < got->count; i++) {
      int at = fsdp_hearing_index(&self->hearing, got->entries[i].rank);
      if (at < 0 || self->known.ranks[at].local) continue;
      fsdp_board_write(&self->slots[self->known.ranks[at].rank], &got->entries[i].view);
    }
    if (got->moves > atomic_load(&self->shared->moves)) {
      atomic_store(&self->shared->moves, got->moves);
      int64_t moved_ms = now - got->still_ms;
      if (moved_ms > atomic_load(&self->shared->moved_ms)) atomic_store(&self->shared->moved_ms, moved_ms);
    }
    int sender = fsdp_hearing_index(&self->hearing, from);
    if (sender >= 0) atomic_store(&self->speakers[self->known.ranks[sender].node], from);
  }
}

// ---- Looking

// Others' silence does not count while this process itself was stopped.
static void forgive_pause(fsdp_watch *self, int64_t now) {
  int64_t gap = now - self->ticked_ms - TICK_MS;
  self->ticked_ms = now;
  if (gap < PAUSE_MS) return;
  for (int i = 0; i < self->known.count; i++) {
    self->known.ranks[i].beat_ms = fsdp_min_i64(now, self->known.ranks[i].beat_ms + gap);
    self->known.ranks[i].moved_ms = fsdp_min_i64(now, self->known.ranks[i].moved_ms + gap);
  }
  if (self->suspect_ms) self->suspect_ms += gap;
}

static void beat(fsdp_watch *self, int64_t now) {
  if (now - self->beaten_ms < FSDP_WATCH_BEAT_MS) return;
  self->beaten_ms = now;
  fsdp_board_slot *mine = fsdp_board_mine;
  atomic_store_explicit(&mine->marks, fsdp_progress_count(), memory_order_relaxed);
  uint64_t beats = atomic_load_explicit(&mine->beat, memory_order_relaxed);
  atomic_store_explicit(&mine->beat, beats + 1, memory_order_relaxed);
}

static void observe(fsdp_watch *self, int64_t now) {
  self->known.elsewhere_ms = fsdp_min_i64(now, atomic_load(&self->shared->moved_ms));
  for (int i = 0; i < self->known.count; i++) {
    fsdp_watch_seen *rank = &self->known.ranks[i];
    fsdp_board_view view;
    fsdp_board_read(&self->slots[rank->rank], &view);
    if (view.beat != rank->view.beat) rank->beat_ms = now;
    if (fsdp_board_moved(&rank->view, &view)) rank->moved_ms = now;
    rank->view = view;
  }
}

// Whether a process has ended, from the kernel: at once through its handle.
static void look_for_ended(fsdp_watch *self) {
  for (int i = 0; i < self->known.count; i++) {
    fsdp_watch_seen *rank = &self->known.ranks[i];
    if (!rank->local || i == self->known.self || rank->ended || rank->view.process == 0) continue;
    if (rank->handle < 0) rank->handle = (int)syscall(SYS_pidfd_open, rank->view.process, 0);
    if (rank->handle >= 0) {
      struct pollfd one = {.fd = rank->handle, .events = POLLIN};
      rank->ended = poll(&one, 1, 0) > 0;
    } else {
      rank->ended = errno == ESRCH || (kill(rank->view.process, 0) != 0 && errno == ESRCH);
    }
  }
}

// Sleeps to the next tick, or until a process of the node ends, or somebody wakes the thread.
static void sleep_a_tick(fsdp_watch *self) {
  int count = 0;
  self->polls[count++] = (struct pollfd){.fd = self->wake, .events = POLLIN};
  for (int i = 0; i < self->known.count; i++) {
    const fsdp_watch_seen *rank = &self->known.ranks[i];
    if (!rank->local || rank->handle < 0 || rank->ended) continue;
    self->polls[count++] = (struct pollfd){.fd = rank->handle, .events = POLLIN};
  }
  int tick_ms = self->ticked_ms < self->urgent_ms ? URGENT_MS : TICK_MS;
  if (poll(self->polls, (nfds_t)count, tick_ms) > 0 && self->polls[0].revents) {
    uint64_t ignored;
    if (read(self->wake, &ignored, sizeof ignored) < 0) return;
  }
}

// ---- The end

static void explain(fsdp_watch *self, fsdp_watch_verdict why, int64_t now, char *text, size_t bytes,
                    const fsdp_watch_seen **failed) {
  char who[1024];
  const char *advice = fsdp_watch_advice(self->shared);
  long long limit_s = fsdp_watch_limit_s(self->known.limit_ms);
  const fsdp_watch_seen *mine = &self->known.ranks[self->known.self],
                        *stopped = fsdp_watch_find_stopped(&self->known, now);
  *failed = mine;
  for (int i = self->known.count - 1; i >= 0; i--) {
    const fsdp_watch_seen *rank = &self->known.ranks[i];
    fsdp_rank_state state = fsdp_watch_state_of(&self->known, rank, now);
    self->explained[i] = (fsdp_board_rank){rank->rank, rank->view, state, rank->host};
    if (state != FSDP_RANK_ALIVE && state != FSDP_RANK_LEFT) *failed = rank;
  }
  fsdp_board_explain(self->explained, self->known.count, self->known.self, who, sizeof who);
  if (self->known.leaving && stopped) {
    *failed = stopped;
    snprintf(text, bytes,
             "the run is complete, but rank %d (host %s) cannot leave the job (--comm-timeout %lld): rank %d "
             "(host %s) shows no sign of life: its process %d is stopped",
             self->rank, mine->host, limit_s, stopped->rank, stopped->host, stopped->view.process);
  } else if (self->known.leaving) {
    snprintf(text, bytes,
             "the run is complete, but rank %d (host %s) cannot leave the job (--comm-timeout %lld): another "
             "rank was stopped, or its node cannot be reached",
             self->rank, mine->host, limit_s);
  } else if (why == FSDP_VERDICT_ENDED) {
    snprintf(text, bytes, "a rank has ended: %s. What it or the system's log says is the cause. %s", who,
             advice);
  } else {
    snprintf(text, bytes, "no progress for %lld s (--comm-timeout): %s. %s", limit_s, who, advice);
  }
}

// Peers of this node, by what is known of them at `now`.
typedef struct peers {
  int left, remaining; // of those that gave signs of life
} peers;

static peers count_peers(fsdp_watch *self, int64_t now) {
  peers count = {0};
  look_for_ended(self);
  for (int i = 0; i < self->known.count; i++) {
    const fsdp_watch_seen *rank = &self->known.ranks[i];
    if (!rank->local || i == self->known.self || rank->view.process == 0) continue;
    if (rank->ended)
      count.left++;
    else if (!fsdp_watch_is_stopped(&self->known, rank, now))
      count.remaining++;
  }
  return count;
}

static void end_peers(fsdp_watch *self) {
  for (int i = 0; i < self->known.count; i++) {
    const fsdp_watch_seen *rank = &self->known.ranks[i];
    if (rank->local && i != self->known.self && !rank->ended && rank->handle >= 0)
      syscall(SYS_pidfd_send_signal, rank->handle, SIGKILL, NULL, 0);
  }
}

// Tells the nodes that hear of this one that the job is over.
static void pass_on(fsdp_watch *self, int status) {
  bool refused = true;
  for (int i = 0; self->has_mail && (i < TELLS || (refused && i < TELLS_LIVE)); i++) {
    refused = post_over(self, status) > 0;
    take_mail(self, fsdp_now_ms());
    fsdp_sleep_ms(TELL_MS);
  }
}

// Notifies every rank.
static void tell(fsdp_watch *self, fsdp_status status, bool cut_off) {
  pass_on(self, (int)status);
  // Before its ranks end: an mpirun that already ends them cannot be ended cleanly.
  if (cut_off) {
    fsdp_launcher launcher = fsdp_launcher_find();
    fsdp_launcher_end(&launcher);
    fsdp_launcher_close(&launcher);
  }
  atomic_store(&self->shared->over, (uint32_t)status);
}

// Waits until all other ranks of the reporting rank's node have left, and ends those that have not.
static void end_node(fsdp_watch *self, bool cut_off, int64_t now) {
  // The job's exit status is that of the rank that mpirun sees end first: one that leaves, not a stopped one
  // that is killed. If this rank is the only one to leave, stopped ranks are left to mpirun, if there is one.
  peers count = count_peers(self, now);
  for (int64_t waited = 0; waited < LEAVE_MS && count.remaining > 0; waited += 50) {
    fsdp_sleep_ms(50);
    count = count_peers(self, now);
  }
  fsdp_launcher launcher = fsdp_launcher_find();
  if (cut_off || count.left > 0 || count.remaining > 0 || fsdp_launcher_has_ended(&launcher, 0)) {
    fsdp_sleep_ms(50);
    end_peers(self);
  }
}

static void speak(fsdp_watch *self, fsdp_watch_verdict why, int64_t now) {
  uint32_t nobody = 0;
  if (!atomic_compare_exchange_strong(&self->shared->claimed, &nobody, (uint32_t)self->rank + 1)) return;
  char text[1700];
  const char *message = self->failure;
  const fsdp_watch_seen *failed = &self->known.ranks[self->known.self];
  if (why != FSDP_VERDICT_FAILED) {
    explain(self, why, now, text, sizeof text, &failed);
    message = text;
  }
  bool cut_off = fsdp_watch_is_cut_off(&self->known, why, now);
  fsdp_status status = why == FSDP_VERDICT_FAILED ? self->failure_status : FSDP_ERR_PEER;
  fsdp_job_say(message);
  atomic_store(&self->shared->said, 1);
  int record =
      fsdp_job_record(&(fsdp_job_end){failed->rank, failed->host, failed->view.process, status, message, 0});
  tell(self, status, cut_off);
  end_node(self, cut_off, now);
  fsdp_job_record_wait(record);
  _exit((int)status);
}

static void leave_if_over(const fsdp_watch *self) {
  uint32_t status = atomic_load(&self->shared->over);
  if (status) _exit((int)status);
}

static void decide(fsdp_watch *self, int64_t now) {
  fsdp_watch_verdict why = fsdp_watch_judge(&self->known, now);
  if (why == FSDP_VERDICT_NONE) {
    self->suspect_ms = 0;
    return;
  }
  leave_if_over(self); // an end that was seen since the tick began may be of a rank that has left for this
  if (self->suspect_ms == 0) {
    self->suspect_ms = now;
    for (int i = 0; i < self->known.count; i++)
      self->known.ranks[i].suspect_beat = self->known.ranks[i].view.beat;
  }
  int64_t waited = fsdp_watch_waited_ms(&self->known, self->suspect_ms, now);
  if (waited >= fsdp_watch_courtesy_ms(&self->known, why, now)) {
    if (fsdp_watch_is_reported_elsewhere(&self->known, why, now))
      atomic_store(&self->shared->over, FSDP_ERR_PEER);
    leave_if_over(self);
    speak(self, why, now);
  }
  // The rank that claimed it has had time to report, and may have ended since.
  if (waited > fsdp_watch_courtesy_ms(&self->known, why, now) + LEAVE_MS) _exit(FSDP_ERR_PEER);
}

// Whether the job may be about to end. Where nodes hear of each other through others, what has moved is known
// to all by then, if that was before mails became frequent; and soon known, if it was later.
static bool is_urgent(fsdp_watch *self, int64_t now) {
  int64_t still_ms = now - fsdp_watch_last_moved_ms(&self->known);
  int64_t spread_ms = self->hearing.rounds * (MAIL_MS + TICK_MS);
  bool stands = self->hearing.rounds > 0 && still_ms >= self->known.limit_ms - spread_ms - LINGER_MS;
  if (self->suspect_ms || stands) self->urgent_ms = now + LINGER_MS;
  return now < self->urgent_ms;
}

// ---- The thread

static void tick(fsdp_watch *self) {
  int64_t now = fsdp_now_ms();
  forgive_pause(self, now);
  beat(self, now);
  if (self->has_mail) take_mail(self, now);
  if (self->passes_on && self->known.spread_ms > 0) pass_on(self, (int)atomic_load(&self->shared->over));
  leave_if_over(self);
  // What asks one rank to end asks the others, and signals arrive one by one.
  if (fsdp_job_is_asked_to_end()) atomic_store(&self->shared->asked, 1);
  if (atomic_load(&self->shared->asked)) fsdp_job_asked_to_end();
  observe(self, now);
  look_for_ended(self);
  int64_t mail_ms = is_urgent(self, now) ? URGENT_MS : MAIL_MS;
  if (self->has_mail && now - self->mailed_ms >= mail_ms && is_speaker(self, now)) {
    self->mailed_ms = now;
    post_board(self, now);
  }
  decide(self, now);
}

static void *run(void *argument) {
  fsdp_watch *self = argument;
  for (;;) {
    sleep_a_tick(self);
    pthread_mutex_lock(&self->mutex);
    if (self->stop) break;
    tick(self);
    pthread_mutex_unlock(&self->mutex);
  }
  pthread_mutex_unlock(&self->mutex);
  return NULL;
}

static void wake(fsdp_watch *self) {
  const uint64_t one = 1;
  if (write(self->wake, &one, sizeof one) < 0) return; // it ticks anyway
}

// Called on any thread: hands the message to the watch's thread and waits until that ends the process.
static void fail(fsdp_status status, const char *message, bool follows) {
  fsdp_watch *self = the_watch;
  if (pthread_equal(pthread_self(), self->thread)) {
    fsdp_job_say(message);
    const char *host = self->known.ranks[self->known.self].host;
    fsdp_job_record_wait(fsdp_job_record(&(fsdp_job_end){self->rank, host, getpid(), status, message, 0}));
    _exit((int)status);
  }
  pthread_mutex_lock(&self->mutex);
  if (!self->known.failed) {
    snprintf(self->failure, sizeof self->failure, "%s", message);
    self->failure_status = status;
    self->known.failed = true;
    self->known.follows = follows;
  }
  pthread_mutex_unlock(&self->mutex);
  wake(self);
  for (;;) pause();
}

static void start_thread(fsdp_watch *self) {
  sigset_t all, before; // signals are the main thread's
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failure = pthread_create(&self->thread, NULL, run, self);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  FSDP_NEED_THREAD(failure, "the watch over the ranks");
}

fsdp_watch *fsdp_watch_start(const fsdp_watch_config *config) {
  fsdp_watch *self = fsdp_alloc_zeroed(1, sizeof *self);
  self->rank = config->rank;
  self->known.node = config->node[config->rank];
  self->shared = config->memory;
  self->slots = fsdp_watch_slots(config->memory);
  self->speakers = (_Atomic int32_t *)(self->slots + config->size);
  self->has_mail = config->mail != NULL;
  if (config->mail) self->mail = *config->mail;
  self->known.limit_ms = fsdp_watch_judged_ms(FSDP_WATCH_LIMIT_S);
  atomic_store(&self->shared->limit_ms, self->known.limit_ms);
  self->known.started_ms = self->ticked_ms = fsdp_now_ms();
  const fsdp_hearing_config heard = {.rank = config->rank,
                                     .size = config->size,
                                     .circle = config->circle > 0 ? config->circle : FSDP_WATCH_CIRCLE,
                                     .node = config->node,
                                     .hosts = config->hosts};
  fsdp_launcher launcher = fsdp_launcher_find();
  self->known.of_daemon = launcher.handle >= 0 && launcher.is_daemon;
  fsdp_launcher_close(&launcher);
  fsdp_hearing_find(&heard, &self->hearing);
  self->known.count = self->hearing.count;
  self->known.self = self->hearing.self;
  self->known.spread_ms = self->hearing.rounds * 2 * URGENT_MS;
  size_t count = (size_t)self->known.count;
  self->known.ranks = fsdp_alloc_zeroed(count, sizeof *self->known.ranks);
  self->polls = fsdp_alloc_zeroed(count + 1, sizeof *self->polls);
  self->explained = fsdp_alloc_zeroed(count, sizeof *self->explained);
  self->buffer_bytes = fsdp_watch_mail_bytes(self->hearing.node_ranks_max);
  self->buffer = fsdp_alloc((size_t)self->buffer_bytes);
  for (int i = 0; i < self->known.count; i++) {
    const fsdp_heard *of = &self->hearing.heard[i];
    self->known.ranks[i] = (fsdp_watch_seen){.rank = of->rank,
                                             .node = of->node,
                                             .local = of->local,
                                             .host = of->host,
                                             .handle = -1,
                                             .beat_ms = self->known.started_ms,
                                             .moved_ms = self->known.started_ms,
                                             .order = of->order};
    if (self->known.node == self->rank) atomic_store(&self->speakers[of->node], of->node);
  }
  self->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  FSDP_CHECK(self->wake >= 0 && pthread_mutex_init(&self->mutex, NULL) == 0,
             "the watch could not be started");
  fsdp_board_mine = &self->slots[self->rank];
  atomic_store(&fsdp_board_mine->process, (int32_t)getpid());
  the_watch = self;
  fsdp_job_identify(self->rank, self->known.ranks[self->known.self].host, fail);
  start_thread(self);
  return self;
}

int64_t fsdp_watch_judged_ms(int seconds) {
  return fsdp_max_i64((int64_t)seconds * 800, (int64_t)seconds * 1000 - FSDP_WATCH_END_MS);
}
int fsdp_watch_limit_s(int64_t judged_ms) {
  const int64_t whole = (judged_ms + FSDP_WATCH_END_MS) / 1000;
  return (int)(fsdp_watch_judged_ms((int)whole) == judged_ms ? whole : judged_ms / 800);
}

void fsdp_watch_set_limit(fsdp_watch *self, int seconds) {
  if (!self) return;
  pthread_mutex_lock(&self->mutex);
  self->known.limit_ms = fsdp_watch_judged_ms(seconds);
  atomic_store(&self->shared->limit_ms, self->known.limit_ms);
  pthread_mutex_unlock(&self->mutex);
}

void fsdp_watch_set_said(fsdp_watch *self) {
  if (self) atomic_store(&self->shared->said, 1);
}

void fsdp_watch_set_advice(fsdp_watch *self, const char *advice) {
  if (!self || self->known.node != self->rank) return; // one writer
  snprintf(self->shared->advice, sizeof self->shared->advice, "%s", advice);
  atomic_store(&self->shared->has_advice, 1);
}

void fsdp_watch_set_folder(fsdp_watch *self, const char *folder) {
  if (!self || self->known.node != self->rank) return; // one writer
  snprintf(self->shared->folder, sizeof self->shared->folder, "%s", folder);
  atomic_store(&self->shared->has_folder, 1);
}

void fsdp_watch_leave(fsdp_watch *self) {
  pthread_mutex_lock(&self->mutex);
  fsdp_board_enter(FSDP_ACTIVITY_LEFT);
  if (self->has_mail) post_board(self, fsdp_now_ms());
  self->has_mail = false;
  self->known.leaving = true;
  pthread_mutex_unlock(&self->mutex);
  fsdp_lane_wait(&fsdp_board_mine->lanes[FSDP_LANE_MAIN], true);
}

void fsdp_watch_stop(fsdp_watch *self) {
  if (!self) return;
  pthread_mutex_lock(&self->mutex);
  self->stop = true;
  pthread_mutex_unlock(&self->mutex);
  wake(self);
  pthread_join(self->thread, NULL);
  fsdp_job_identify(self->rank, self->known.ranks[self->known.self].host, NULL);
  the_watch = NULL;
  atomic_store(&fsdp_board_mine->process, 0); // its end is no failure any more
  fsdp_board_mine = &fsdp_board_nobody;
  for (int i = 0; i < self->known.count; i++) {
    if (self->known.ranks[i].handle >= 0) close(self->known.ranks[i].handle);
  }
  close(self->wake);
  pthread_mutex_destroy(&self->mutex);
  free(self->buffer);
  fsdp_hearing_release(&self->hearing);
  free(self->explained);
  free(self->polls);
  free(self->known.ranks);
  free(self);
}
