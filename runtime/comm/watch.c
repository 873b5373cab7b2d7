#include "runtime/comm/watch.h"

#include "runtime/base/clock.h"
#include "runtime/base/progress.h"
#include "runtime/base/size.h"
#include "runtime/base/status.h"
#include "runtime/comm/launcher_end.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define TICK_MS 200
#define MAIL_MS 500
// Nodes that get a mail per tick; if there are more, they take turns.
#define MAILS_MAX 64
// If the thread sleeps longer than this beyond its tick, its process was stopped.
#define PAUSE_MS 1500
// A rank without a heartbeat for this long is reported as silent, and another rank reports for the node.
#define SILENT_MS  3000
#define SPEAKER_MS 1000
// How long a node that would report gives way to the one that knows more, and a rank that was asked to end to
// the process that ends the rest of the job.
#define GIVE_WAY_MS 1000
#define ASKED_MS    2000
// For peers that were asked to leave; then they are ended.
#define LEAVE_MS 2000

// What this process has observed of a rank.
typedef struct seen {
  fsdp_board_view view;
  int64_t beat_ms, moved_ms; // when they last changed
  int node;
  char host[FSDP_HOST_NAME_BYTES];
  int handle; // pidfd of a rank of this node; -1: none
  bool ended;
} seen;

struct fsdp_watch {
  int rank, size, first_local; // of this node's ranks, the lowest
  fsdp_watch_node *shared;
  fsdp_board_slot *slots;
  _Atomic int32_t *speakers; // by lowest rank of a node: whom to send mail to
  fsdp_mail mail;
  seen *ranks;
  struct pollfd *polls;
  fsdp_board_rank *explained;
  unsigned char *letter; // one mail
  int letter_bytes;
  int next_node;     // by lowest rank: whose turn it is to get mail
  int64_t period_ms; // in which every node gets one
  int64_t started_ms, ticked_ms, mailed_ms,
      suspect_ms; // suspect_ms: since when it would speak; 0: it would not
  int wake;       // eventfd
  pthread_t thread;
  pthread_mutex_t mutex; // what follows
  bool stop, leaving, has_mail, failed, follows;
  int64_t limit_ms;
  char failure[1200];
};

// One mail: the state of the sender's node.
typedef struct letter {
  int32_t kind, count; // count views, each behind its rank
  struct entry {
    int32_t rank, unused;
    fsdp_board_view view;
  } entries[];
} letter;
enum { LETTER_BOARD = 1, LETTER_OVER = 2 };

static fsdp_watch *the_watch; // of this process, for fsdp_job_failed

static int64_t now_ms(void) {
  return fsdp_now_ns() / 1000000;
}

static bool is_local(const fsdp_watch *self, int rank) {
  return self->ranks[rank].node == self->ranks[self->rank].node;
}

static bool has_left(const seen *r) {
  return r->view.activity == FSDP_ACTIVITY_LEFT;
}

int64_t fsdp_watch_memory_bytes(int size) {
  return (int64_t)sizeof(fsdp_watch_node) + size * (int64_t)sizeof(fsdp_board_slot) +
         fsdp_round_up(size * (int64_t)sizeof(int32_t), 64);
}

int fsdp_watch_mail_bytes(int size) {
  return (int)(sizeof(letter) + (size_t)size * sizeof(struct entry));
}

fsdp_board_slot *fsdp_watch_slots(void *memory) {
  return (fsdp_board_slot *)((fsdp_watch_node *)memory + 1);
}

const char *fsdp_watch_advice(const fsdp_watch_node *node) {
  return atomic_load(&node->saves)
             ? "Start again with -e NAME to resume from the newest checkpoint"
             : "Nothing of this run was saved; -e NAME saves checkpoints to resume from";
}

// ---- Mail

// The node's lowest live rank sends its mail.
static bool is_speaker(const fsdp_watch *self, int64_t now) {
  for (int r = self->first_local; r < self->rank; r++) {
    const seen *other = &self->ranks[r];
    if (is_local(self, r) && !other->ended && !has_left(other) && now - other->beat_ms < SPEAKER_MS)
      return false;
  }
  return true;
}

// Sends this node's state to the nodes whose turn it is.
static void post_board(fsdp_watch *self) {
  letter *mine = (letter *)self->letter;
  mine->kind = LETTER_BOARD;
  mine->count = 0;
  for (int r = self->first_local; r < self->size; r++) {
    if (!is_local(self, r)) continue;
    struct entry *entry = &mine->entries[mine->count++];
    entry->rank = r;
    fsdp_board_read(&self->slots[r], &entry->view);
  }
  int bytes = (int)(sizeof *mine + (size_t)mine->count * sizeof *mine->entries);
  for (int looked = 0, posted = 0; looked < self->size && posted < MAILS_MAX; looked++) {
    int r = self->next_node;
    self->next_node = (r + 1) % self->size;
    if (self->ranks[r].node != r || is_local(self, r)) continue;
    self->mail.post(self->mail.owner, atomic_load(&self->speakers[r]), mine, bytes);
    posted++;
  }
}

// Asks every rank of the other nodes to leave: the rank that reports for them may be stopped.
static void post_over(fsdp_watch *self) {
  letter over = {.kind = LETTER_OVER};
  for (int r = 0; r < self->size; r++) {
    if (!is_local(self, r)) self->mail.post(self->mail.owner, r, &over, (int)sizeof over);
  }
}

static void take_mail(fsdp_watch *self) {
  int from = 0, bytes;
  while ((bytes = self->mail.take(self->mail.owner, self->letter, self->letter_bytes, &from)) > 0) {
    const letter *got = (const letter *)self->letter;
    if (got->kind == LETTER_OVER) atomic_store(&self->shared->over, 1);
    for (int i = 0; i < got->count; i++) {
      int r = got->entries[i].rank;
      if (r < 0 || r >= self->size || is_local(self, r)) continue;
      fsdp_board_write(&self->slots[r], &got->entries[i].view);
    }
    atomic_store(&self->speakers[self->ranks[from].node], from);
  }
}

// ---- Looking

// Others' silence does not count while this process itself was stopped.
static void forgive_pause(fsdp_watch *self, int64_t now) {
  int64_t gap = now - self->ticked_ms - TICK_MS;
  self->ticked_ms = now;
  if (gap < PAUSE_MS) return;
  for (int r = 0; r < self->size; r++) {
    self->ranks[r].beat_ms = fsdp_min_i64(now, self->ranks[r].beat_ms + gap);
    self->ranks[r].moved_ms = fsdp_min_i64(now, self->ranks[r].moved_ms + gap);
  }
  if (self->suspect_ms) self->suspect_ms += gap;
}

static void beat(void) {
  fsdp_board_slot *mine = fsdp_board_mine;
  atomic_store_explicit(&mine->marks, fsdp_progress_count(), memory_order_relaxed);
  uint64_t beats = atomic_load_explicit(&mine->beat, memory_order_relaxed);
  atomic_store_explicit(&mine->beat, beats + 1, memory_order_relaxed);
}

static void observe(fsdp_watch *self, int64_t now) {
  for (int r = 0; r < self->size; r++) {
    seen *rank = &self->ranks[r];
    fsdp_board_view view;
    fsdp_board_read(&self->slots[r], &view);
    if (view.beat != rank->view.beat) rank->beat_ms = now;
    if (fsdp_board_moved(&rank->view, &view)) rank->moved_ms = now;
    rank->view = view;
  }
}

// Whether a process has ended, from the kernel: at once through its handle.
static void look_for_ended(fsdp_watch *self) {
  for (int r = self->first_local; r < self->size; r++) {
    seen *rank = &self->ranks[r];
    if (!is_local(self, r) || r == self->rank || rank->ended || rank->view.process == 0) continue;
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
  for (int r = self->first_local; r < self->size; r++) {
    const seen *rank = &self->ranks[r];
    if (!is_local(self, r) || rank->handle < 0 || rank->ended) continue;
    self->polls[count++] = (struct pollfd){.fd = rank->handle, .events = POLLIN};
  }
  if (poll(self->polls, (nfds_t)count, TICK_MS) > 0 && self->polls[0].revents) {
    uint64_t ignored;
    if (read(self->wake, &ignored, sizeof ignored) < 0) return;
  }
}

// ---- Deciding

typedef enum verdict { VERDICT_NONE, VERDICT_FAILED, VERDICT_ENDED, VERDICT_SILENT, VERDICT_STUCK } verdict;

static int64_t silent_ms(const fsdp_watch *self) {
  return fsdp_min_i64(SILENT_MS + self->period_ms, self->limit_ms);
}

static bool node_answers(const fsdp_watch *self, int node, int64_t now) {
  for (int r = node; r < self->size; r++) {
    const seen *rank = &self->ranks[r];
    if (rank->node == node && !rank->ended && now - rank->beat_ms < silent_ms(self)) return true;
  }
  return false;
}

static fsdp_rank_state state_of(const fsdp_watch *self, int r, int64_t now) {
  const seen *rank = &self->ranks[r];
  if (has_left(rank)) return FSDP_RANK_LEFT;
  if (rank->ended) return FSDP_RANK_ENDED;
  if (now - rank->beat_ms < silent_ms(self)) return FSDP_RANK_ALIVE;
  if (!is_local(self, r) && !node_answers(self, rank->node, now)) return FSDP_RANK_UNREACHABLE;
  return FSDP_RANK_SILENT;
}

static verdict judge(const fsdp_watch *self, int64_t now) {
  if (self->failed) return VERDICT_FAILED;
  int64_t moved_ms = self->started_ms;
  bool silent = false;
  for (int r = 0; r < self->size; r++) {
    const seen *rank = &self->ranks[r];
    moved_ms = fsdp_max_i64(moved_ms, rank->moved_ms);
    if (self->leaving || has_left(rank) || r == self->rank) continue;
    if (rank->ended) return VERDICT_ENDED;
    silent = silent || now - rank->beat_ms >= self->limit_ms;
  }
  if (silent) return VERDICT_SILENT;
  bool waits = fsdp_board_waiting_lane(&self->ranks[self->rank].view) >= 0;
  return waits && now - moved_ms >= self->limit_ms ? VERDICT_STUCK : VERDICT_NONE;
}

// Of this node's ranks that are still to leave, one without a heartbeat; -1: none.
static int find_stopped(const fsdp_watch *self, int64_t now) {
  for (int r = self->first_local; r < self->size; r++) {
    const seen *rank = &self->ranks[r];
    if (!is_local(self, r) || r == self->rank || rank->ended || rank->view.process == 0) continue;
    if (now - rank->beat_ms >= silent_ms(self)) return r;
  }
  return -1;
}

// A node reports its own ranks at once. It reports others if their node cannot, which it knows only after a
// while; of ranks that merely wait for each other the first node speaks.
static int64_t courtesy_ms(const fsdp_watch *self, verdict why, int64_t now) {
  if (why == VERDICT_FAILED) return self->follows ? GIVE_WAY_MS : 0;
  int64_t asked_ms = fsdp_job_is_asked_to_end() ? ASKED_MS : 0;
  if (why == VERDICT_ENDED) return asked_ms;
  if (self->leaving) return asked_ms + (find_stopped(self, now) < 0 ? GIVE_WAY_MS : 0);
  bool others = false;
  for (int r = 0; r < self->size; r++) {
    fsdp_rank_state state = state_of(self, r, now);
    if (is_local(self, r) && state == FSDP_RANK_SILENT) return asked_ms;
    bool missed = state == FSDP_RANK_SILENT || state == FSDP_RANK_UNREACHABLE;
    others = others || missed || (r < self->first_local && state == FSDP_RANK_ALIVE);
  }
  return asked_ms + (others ? GIVE_WAY_MS : 0);
}

// ---- The end

static void explain(fsdp_watch *self, verdict why, int64_t now, char *text, size_t bytes, int *failed_rank) {
  char who[1024];
  const char *advice = fsdp_watch_advice(self->shared);
  long long limit_s = self->limit_ms / 1000;
  *failed_rank = self->rank;
  for (int r = self->size - 1; r >= 0; r--) {
    fsdp_rank_state state = state_of(self, r, now);
    self->explained[r] = (fsdp_board_rank){self->ranks[r].view, state, self->ranks[r].host};
    if (state != FSDP_RANK_ALIVE && state != FSDP_RANK_LEFT) *failed_rank = r;
  }
  fsdp_board_explain(self->explained, self->size, self->rank, who, sizeof who);
  int stopped = find_stopped(self, now);
  if (self->leaving && stopped >= 0) {
    *failed_rank = stopped;
    snprintf(text, bytes,
             "the run is complete, but rank %d (host %s) cannot leave the job (--comm-timeout %lld): rank %d "
             "(host %s) shows no sign of life: its process %d is stopped",
             self->rank, self->ranks[self->rank].host, limit_s, stopped, self->ranks[stopped].host,
             self->ranks[stopped].view.process);
  } else if (self->leaving) {
    snprintf(text, bytes,
             "the run is complete, but rank %d (host %s) cannot leave the job (--comm-timeout %lld): another "
             "rank was stopped, or its node cannot be reached",
             self->rank, self->ranks[self->rank].host, limit_s);
  } else if (why == VERDICT_ENDED) {
    snprintf(text, bytes, "a rank has ended: %s. What it or the system's log says is the cause. %s", who,
             advice);
  } else {
    snprintf(text, bytes, "no progress for %lld s (--comm-timeout): %s. %s", limit_s, who, advice);
  }
}

static void end_process(const seen *rank) {
  if (rank->handle >= 0) syscall(SYS_pidfd_send_signal, rank->handle, SIGKILL, NULL, 0);
}

// Peers of this node, by what is known of them at `now`.
typedef struct peers {
  int left, remaining; // of those that gave signs of life
} peers;

static peers count_peers(fsdp_watch *self, int64_t now) {
  peers count = {0};
  look_for_ended(self);
  for (int r = self->first_local; r < self->size; r++) {
    const seen *rank = &self->ranks[r];
    if (!is_local(self, r) || r == self->rank || rank->view.process == 0) continue;
    if (rank->ended)
      count.left++;
    else if (state_of(self, r, now) != FSDP_RANK_SILENT)
      count.remaining++;
  }
  return count;
}

static void end_peers(fsdp_watch *self) {
  for (int r = self->first_local; r < self->size; r++) {
    if (is_local(self, r) && r != self->rank && !self->ranks[r].ended) end_process(&self->ranks[r]);
  }
}

static void wait_ms(int64_t ms) {
  nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

// Whether mpirun cannot reach all of its daemons: a node sends nothing, or it has left while this rank is
// still blocked.
static bool is_cut_off(const fsdp_watch *self, verdict why, int64_t now) {
  for (int r = 0; r < self->size; r++) {
    fsdp_rank_state state = state_of(self, r, now);
    if (state == FSDP_RANK_UNREACHABLE) return true;
    if (why == VERDICT_STUCK && state == FSDP_RANK_LEFT && !is_local(self, r)) return true;
  }
  return false;
}

// Notifies every rank.
static void tell(fsdp_watch *self, bool cut_off) {
  for (int i = 0; self->has_mail && i < 3; i++) {
    post_over(self); // again if the previous one was still under way
    take_mail(self);
    wait_ms(20);
  }
  // Before its ranks end: an mpirun that already ends them cannot be ended cleanly.
  if (cut_off) {
    fsdp_launcher launcher = fsdp_launcher_find();
    fsdp_launcher_end(&launcher);
    fsdp_launcher_close(&launcher);
  }
  atomic_store(&self->shared->over, 1);
}

// Waits until all other ranks of the reporting rank's node have left, and ends those that have not.
static void end_node(fsdp_watch *self, bool cut_off, int64_t now) {
  // The job's exit status is that of the rank that mpirun sees end first: one that leaves, not a stopped one
  // that is killed. If this rank is the only one to leave, stopped ranks are left to mpirun, if there is one.
  peers count = count_peers(self, now);
  for (int64_t waited = 0; waited < LEAVE_MS && count.remaining > 0; waited += 50) {
    wait_ms(50);
    count = count_peers(self, now);
  }
  fsdp_launcher launcher = fsdp_launcher_find();
  if (cut_off || count.left > 0 || count.remaining > 0 || fsdp_launcher_has_ended(&launcher, 0)) {
    wait_ms(50);
    end_peers(self);
  }
}

static void speak(fsdp_watch *self, verdict why, int64_t now) {
  uint32_t nobody = 0;
  if (!atomic_compare_exchange_strong(&self->shared->claimed, &nobody, (uint32_t)self->rank + 1)) return;
  char text[1600];
  const char *message = self->failure;
  int failed_rank = self->rank;
  if (why != VERDICT_FAILED) {
    explain(self, why, now, text, sizeof text, &failed_rank);
    message = text;
  }
  const seen *failed = &self->ranks[failed_rank];
  bool cut_off = is_cut_off(self, why, now);
  fsdp_job_say(message);
  atomic_store(&self->shared->said, 1);
  int record = fsdp_job_record(failed_rank, failed->host, failed->view.process, message);
  tell(self, cut_off);
  end_node(self, cut_off, now);
  fsdp_job_record_wait(record);
  _exit(FSDP_ERR_PEER);
}

static void decide(fsdp_watch *self, int64_t now) {
  verdict why = judge(self, now);
  if (why == VERDICT_NONE) {
    self->suspect_ms = 0;
    return;
  }
  if (self->suspect_ms == 0) self->suspect_ms = now;
  int64_t waited = now - self->suspect_ms;
  if (waited >= courtesy_ms(self, why, now)) speak(self, why, now);
  // The rank that claimed it has had time to report, and may have ended since.
  if (waited > courtesy_ms(self, why, now) + LEAVE_MS) _exit(FSDP_ERR_PEER);
}

// ---- The thread

static void tick(fsdp_watch *self) {
  int64_t now = now_ms();
  forgive_pause(self, now);
  beat();
  if (self->has_mail) take_mail(self);
  if (atomic_load(&self->shared->over)) _exit(FSDP_ERR_PEER);
  if (fsdp_job_is_asked_to_end()) atomic_store(&self->shared->asked, 1);
  observe(self, now);
  look_for_ended(self);
  if (self->has_mail && now - self->mailed_ms >= MAIL_MS && is_speaker(self, now)) {
    self->mailed_ms = now;
    post_board(self);
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
static void fail(const char *message, bool follows) {
  fsdp_watch *self = the_watch;
  if (pthread_equal(pthread_self(), self->thread)) {
    fsdp_job_say(message);
    fsdp_job_record_wait(fsdp_job_record(self->rank, self->ranks[self->rank].host, getpid(), message));
    _exit(FSDP_ERR_PEER);
  }
  pthread_mutex_lock(&self->mutex);
  if (!self->failed) {
    snprintf(self->failure, sizeof self->failure, "%s", message);
    self->failed = true;
    self->follows = follows;
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
  FSDP_CHECK(!failure, "the watch could not be started (%s)", strerror(failure));
}

fsdp_watch *fsdp_watch_start(const fsdp_watch_config *config) {
  fsdp_watch *self = fsdp_alloc_zeroed(1, sizeof *self);
  self->rank = config->rank;
  self->size = config->size;
  self->first_local = config->node[config->rank];
  self->shared = config->memory;
  self->slots = fsdp_watch_slots(config->memory);
  self->speakers = (_Atomic int32_t *)(self->slots + config->size);
  self->has_mail = config->mail != NULL;
  if (config->mail) self->mail = *config->mail;
  self->limit_ms = FSDP_WATCH_LIMIT_MS;
  atomic_store(&self->shared->limit_ms, FSDP_WATCH_LIMIT_MS);
  self->started_ms = self->ticked_ms = now_ms();
  size_t count = (size_t)config->size;
  self->ranks = fsdp_alloc_zeroed(count, sizeof *self->ranks);
  self->polls = fsdp_alloc_zeroed(count + 1, sizeof *self->polls);
  self->explained = fsdp_alloc_zeroed(count, sizeof *self->explained);
  self->letter_bytes = fsdp_watch_mail_bytes(config->size);
  self->letter = fsdp_alloc((size_t)self->letter_bytes);
  int nodes = 0;
  for (int r = 0; r < config->size; r++) nodes += config->node[r] == r;
  self->period_ms = (nodes - 1) / MAILS_MAX * MAIL_MS;
  for (int r = 0; r < config->size; r++) {
    seen *rank = &self->ranks[r];
    rank->node = config->node[r];
    rank->handle = -1;
    rank->beat_ms = rank->moved_ms = self->started_ms;
    memcpy(rank->host, config->hosts[r], sizeof rank->host);
    if (self->first_local == self->rank && rank->node == r) atomic_store(&self->speakers[r], r);
  }
  self->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  FSDP_CHECK(self->wake >= 0 && pthread_mutex_init(&self->mutex, NULL) == 0,
             "the watch could not be started");
  fsdp_board_mine = &self->slots[self->rank];
  atomic_store(&fsdp_board_mine->process, (int32_t)getpid());
  the_watch = self;
  fsdp_job_identify(self->rank, self->ranks[self->rank].host, fail);
  start_thread(self);
  return self;
}

void fsdp_watch_set_limit(fsdp_watch *self, int seconds) {
  pthread_mutex_lock(&self->mutex);
  self->limit_ms = (int64_t)seconds * 1000;
  atomic_store(&self->shared->limit_ms, self->limit_ms);
  pthread_mutex_unlock(&self->mutex);
}

void fsdp_watch_set_saves(fsdp_watch *self, bool saves) {
  atomic_store(&self->shared->saves, saves);
}

void fsdp_watch_set_said(fsdp_watch *self) {
  atomic_store(&self->shared->said, 1);
}

void fsdp_watch_set_folder(fsdp_watch *self, const char *folder) {
  if (self->first_local != self->rank) return; // one writer
  snprintf(self->shared->folder, sizeof self->shared->folder, "%s", folder);
  atomic_store(&self->shared->has_folder, 1);
}

void fsdp_watch_leave(fsdp_watch *self) {
  pthread_mutex_lock(&self->mutex);
  self->has_mail = false;
  self->leaving = true;
  pthread_mutex_unlock(&self->mutex);
  fsdp_board_enter(FSDP_ACTIVITY_LEFT);
  fsdp_lane_wait(&fsdp_board_mine->lanes[FSDP_LANE_MAIN], true);
}

void fsdp_watch_stop(fsdp_watch *self) {
  if (!self) return;
  pthread_mutex_lock(&self->mutex);
  self->stop = true;
  pthread_mutex_unlock(&self->mutex);
  wake(self);
  pthread_join(self->thread, NULL);
  fsdp_job_identify(self->rank, self->ranks[self->rank].host, NULL);
  the_watch = NULL;
  atomic_store(&fsdp_board_mine->process, 0); // its end is no failure any more
  fsdp_board_mine = &fsdp_board_nobody;
  for (int r = 0; r < self->size; r++) {
    if (self->ranks[r].handle >= 0) close(self->ranks[r].handle);
  }
  close(self->wake);
  pthread_mutex_destroy(&self->mutex);
  free(self->letter);
  free(self->explained);
  free(self->polls);
  free(self->ranks);
  free(self);
}
