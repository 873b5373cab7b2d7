#include "runtime/watch/guard.h"

#include "runtime/base/clock.h"
#include "runtime/base/descriptors.h"
#include "runtime/base/size.h"
#include "runtime/base/status.h"
#include "runtime/watch/error_file.h"
#include "runtime/watch/launcher_end.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TICK_MS 200
// If the guard sleeps longer than this beyond its tick it was stopped, and possibly the ranks too.
#define PAUSE_MS 1500
// The time that the ranks' own watches get: to report a rank that has ended, or one without a heartbeat
// beyond the limit; to print a message, and to leave.
#define SPEAK_MS  1500
#define SILENT_MS 1500
#define SAY_MS    2000
#define LEAVE_MS  4000
// For ranks that the guard itself asked to leave.
#define TOLD_MS      1000
#define NAMED_MAX    4
#define GUARD_SPEAKS UINT32_MAX

// A rank of this node.
typedef struct member {
  int rank, process, handle; // handle: a pidfd; -1: it has ended
  bool left, out;            // it has come to the end of the run, and has left the job
  uint64_t beat;
  int64_t beat_ms;
} member;

typedef struct guard {
  fsdp_watch_node *shared;
  fsdp_board_slot *slots;
  member *members;
  struct pollfd *polls;
  int count, alive, out;
  bool several_nodes, owns_launcher, has_terminal;
  char host[FSDP_HOST_NAME_BYTES];
  fsdp_launcher launcher;
  int claim; // fsdp_launcher_claim's; -1: without mpirun
  int64_t ticked_ms;
  int64_t lost_ms, claimed_ms, over_ms; // since when a rank is lost, someone speaks, all have ended; 0: not
  int64_t patience_ms;                  // with ranks that stay, since then
  bool was_asked;                       // when the first rank was lost
} guard;

// ---- Looking

// Silence does not count while the guard itself was stopped.
static void forgive_pause(guard *self, int64_t now) {
  int64_t gap = now - self->ticked_ms - TICK_MS;
  self->ticked_ms = now;
  if (gap < PAUSE_MS) return;
  for (int i = 0; i < self->count; i++) {
    self->members[i].beat_ms = fsdp_min_i64(now, self->members[i].beat_ms + gap);
  }
  int64_t *since[] = {&self->lost_ms, &self->claimed_ms, &self->over_ms};
  for (int i = 0; i < 3; i++) {
    if (*since[i]) *since[i] = fsdp_min_i64(now, *since[i] + gap);
  }
}

static void look(guard *self, int64_t now) {
  bool asked = atomic_load(&self->shared->asked) != 0;
  self->alive = self->out = 0;
  for (int i = 0; i < self->count; i++) {
    member *m = &self->members[i];
    const fsdp_board_slot *slot = &self->slots[m->rank];
    uint64_t beat = atomic_load(&slot->beat);
    if (beat != m->beat) m->beat_ms = now;
    m->beat = beat;
    struct pollfd end = {.fd = m->handle, .events = POLLIN};
    bool ends = m->handle >= 0 && poll(&end, 1, 0) > 0;
    // Its last state: read after its end.
    m->left = atomic_load(&slot->activity) == FSDP_ACTIVITY_LEFT;
    m->out = m->left && atomic_load(&slot->process) == 0;
    if (ends) {
      close(m->handle);
      m->handle = -1;
    }
    self->alive += m->handle >= 0;
    self->out += m->out;
    if (m->handle < 0 && !m->out && !self->lost_ms) {
      self->lost_ms = now;
      self->was_asked = asked;
    }
  }
  if (!self->claimed_ms && atomic_load(&self->shared->claimed)) self->claimed_ms = now;
  if (!self->over_ms && self->alive == 0) self->over_ms = now;
}

// Without a heartbeat for the time limit.
static bool is_silent(const guard *self, const member *m, int64_t now) {
  return m->handle >= 0 && now - m->beat_ms >= atomic_load(&self->shared->limit_ms);
}

static int count_silent(const guard *self, int64_t now) {
  int count = 0;
  for (int i = 0; i < self->count; i++) count += is_silent(self, &self->members[i], now);
  return count;
}

// Whether a rank is silent and no other rank is left to report it, or has not done so in time: all are
// stopped, or all others have left the job.
static bool nobody_speaks(const guard *self, int64_t now) {
  int silent = count_silent(self, now);
  if (silent == 0 || silent == self->alive) return silent > 0;
  int64_t longest_ms = 0;
  for (int i = 0; i < self->count; i++) {
    const member *m = &self->members[i];
    if (m->handle >= 0) longest_ms = fsdp_max_i64(longest_ms, now - m->beat_ms);
  }
  return longest_ms >= atomic_load(&self->shared->limit_ms) + SILENT_MS;
}

// Whether this node's end has been reported, or need not be.
static bool is_settled(const guard *self) {
  return atomic_load(&self->shared->said) || atomic_load(&self->shared->over) || self->was_asked;
}

// ---- mpirun

// Whether mpirun may still be running only because its output is not read.
static bool launcher_prints(const guard *self) {
  bool blocked = false;
  for (int i = STDOUT_FILENO; i <= STDERR_FILENO; i++) {
    int file = fsdp_launcher_output(&self->launcher, i);
    struct pollfd output = {.fd = file, .events = POLLOUT};
    if (file >= 0 && poll(&output, 1, 0) == 0) blocked = true;
    if (file >= 0) close(file);
  }
  return blocked;
}

// ---- Speaking

typedef bool(is_meant)(const guard *self, const member *m, int64_t now);

static bool is_lost(const guard *self, const member *m, int64_t now) {
  (void)self, (void)now;
  return m->handle < 0 && !m->out;
}

// "rank 2 (host b, process 77), rank 3 (host b, process 78)"; the first one.
static const member *name_members(const guard *self, is_meant *meant, int64_t now, char *text, size_t bytes) {
  const member *first = NULL;
  size_t used = 0;
  int named = 0;
  text[0] = 0;
  for (int i = 0; i < self->count; i++) {
    const member *m = &self->members[i];
    if (!meant(self, m, now)) continue;
    if (!first) first = m;
    if (++named > NAMED_MAX || used >= bytes) continue;
    int added = snprintf(text + used, bytes - used, "%srank %d (host %s) in process %d",
                         named > 1 ? ", " : "", m->rank, self->host, m->process);
    used += added > 0 ? (size_t)added : 0;
  }
  if (named > NAMED_MAX && used < bytes)
    snprintf(text + used, bytes - used, " and %d more", named - NAMED_MAX);
  return first;
}

static void speak(guard *self, is_meant *meant, int64_t now) {
  uint32_t nobody = 0;
  bool claims = atomic_compare_exchange_strong(&self->shared->claimed, &nobody, GUARD_SPEAKS);
  // The rank that claimed it and reported nothing for so long never will.
  if (!claims && (!self->claimed_ms || now - self->claimed_ms < SAY_MS)) return;
  // A rank that ended before its own watch began has a guard of its own (start_guard.h).
  if (self->claim >= 0 && !fsdp_launcher_claim(&self->launcher, self->claim)) {
    atomic_store(&self->shared->said, 1);
    atomic_store(&self->shared->over, FSDP_ERR_PEER);
    return;
  }
  char who[512], text[1200];
  const member *first = name_members(self, meant, now, who, sizeof who);
  if (meant == is_silent) {
    snprintf(text, sizeof text,
             "no progress for %lld s (--comm-timeout): no sign of life of %s: it is stopped, or its machine "
             "hangs. %s",
             (long long)fsdp_watch_limit_s(atomic_load(&self->shared->limit_ms)), who,
             fsdp_watch_advice(self->shared));
  } else if (first && first->left) {
    snprintf(text, sizeof text, "the run is complete, but %s was killed or crashed while it left the job",
             who);
  } else {
    snprintf(text, sizeof text,
             "a rank has ended: %s was killed or crashed. What it or the system's log says is the cause. %s",
             who, fsdp_watch_advice(self->shared));
  }
  fsdp_job_say(text);
  atomic_store(&self->shared->said, 1);
  atomic_store(&self->shared->over, FSDP_ERR_PEER);
  if (!self->claimed_ms) self->claimed_ms = now;
  self->patience_ms = count_silent(self, now) == self->alive ? 0 : TOLD_MS;
  if (!first || !atomic_load(&self->shared->has_folder)) return;
  fsdp_error_file_open(self->shared->folder, first->rank, self->host, false);
  fsdp_board_mine = &self->slots[first->rank]; // whose step it is
  fsdp_job_record_wait(
      fsdp_job_record(&(fsdp_job_end){first->rank, self->host, first->process, FSDP_ERR_PEER, text, 0}));
}

// ---- Ending

static void end_members(guard *self) {
  for (int i = 0; i < self->count; i++) {
    if (self->members[i].handle >= 0)
      syscall(SYS_pidfd_send_signal, self->members[i].handle, SIGKILL, NULL, 0);
  }
}

static void give_terminal_back(guard *self) {
  if (!self->has_terminal) return;
  close(STDERR_FILENO);
  fsdp_job_set_outputs(-1, -1);
  self->has_terminal = false;
}

// After a run without failures: on several nodes mpirun waits without a limit for a daemon that it cannot
// reach, and the daemon for mpirun; and for a stopped rank of another node, whose guard reports it at the
// limit, upon which mpirun ends the job.
static bool end_launcher_of_finished(guard *self, int64_t now) {
  int64_t limit_ms = atomic_load(&self->shared->limit_ms);
  if (!self->several_nodes || !self->owns_launcher) return true;
  if (now - self->over_ms < limit_ms + fsdp_launcher_patience_ms(&self->launcher)) return false;
  if (launcher_prints(self)) return false;
  int terminal = fsdp_launcher_output(&self->launcher, STDERR_FILENO);
  if (terminal >= 0 && !self->launcher.is_daemon) {
    fsdp_job_set_outputs(terminal, -1);
    char text[256];
    snprintf(text, sizeof text,
             "the run is complete, but mpirun has not ended for %lld s (--comm-timeout): it cannot reach "
             "another node, and is ended",
             (long long)fsdp_watch_limit_s(limit_ms));
    fsdp_job_say(text);
  }
  fsdp_launcher_end(&self->launcher);
  return true;
}

static bool end_launcher_of_failed(const guard *self, int64_t now) {
  int64_t since = self->claimed_ms ? fsdp_min_i64(self->claimed_ms, self->over_ms) : self->over_ms;
  if (self->was_asked) return true; // its user, or another node's failure, ends mpirun
  if (now - since < fsdp_launcher_patience_ms(&self->launcher)) return false;
  fsdp_launcher_end(&self->launcher);
  return true;
}

// Whether there is nothing more to guard.
static bool tick(guard *self) {
  int64_t now = fsdp_now_ms();
  forgive_pause(self, now);
  look(self, now);
  bool launched = self->launcher.handle < 0 || !fsdp_launcher_has_ended(&self->launcher, 0);
  if (self->lost_ms && !is_settled(self) && (self->alive == 0 || now - self->lost_ms >= SPEAK_MS)) {
    speak(self, is_lost, now);
  }
  if (!is_settled(self) && nobody_speaks(self, now)) speak(self, is_silent, now);
  // A rank of this node that has not begun its watch has a guard of its own, which is to know.
  if (self->claimed_ms && self->claim >= 0) fsdp_launcher_claim(&self->launcher, self->claim);
  if (self->claimed_ms && now - self->claimed_ms >= self->patience_ms) end_members(self);
  if (self->alive > 0) return false;
  bool failed = self->out < self->count;
  if (failed && launched && !is_settled(self)) return false;
  give_terminal_back(self);
  if (self->launcher.handle < 0 || !launched) return true;
  return failed ? end_launcher_of_failed(self, now) : end_launcher_of_finished(self, now);
}

static void sleep_a_tick(guard *self) {
  int count = 0;
  for (int i = 0; i < self->count; i++) {
    if (self->members[i].handle >= 0)
      self->polls[count++] = (struct pollfd){.fd = self->members[i].handle, .events = POLLIN};
  }
  if (self->alive == 0 && self->launcher.handle >= 0)
    self->polls[count++] = (struct pollfd){.fd = self->launcher.handle, .events = POLLIN};
  if (poll(self->polls, (nfds_t)count, TICK_MS) < 0) fsdp_sleep_ms(TICK_MS);
}

// Where the guard has its handle of mpirun, behind which all others are closed.
enum { OF_LAUNCHER = STDERR_FILENO + 1 };

// In the child, which has its parent's memory, standard error, that handle and nothing else.
static void run(guard *self) {
  prctl(PR_SET_NAME, "fsdp_guard"); // who looks for ranks finds no other process
  setsid();
  const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2};
  for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) signal(ignored[i], SIG_IGN);
  close(STDIN_FILENO), close(STDOUT_FILENO);
  if (self->launcher.handle >= 0) self->launcher.handle = dup2(self->launcher.handle, OF_LAUNCHER);
  fsdp_close_from(self->launcher.handle >= 0 ? OF_LAUNCHER + 1 : OF_LAUNCHER);
  self->claim = self->launcher.handle >= 0 ? fsdp_launcher_claim_open() : -1;
  // An mpirun that ends a failed job no longer reads its processes' output.
  int terminal = self->launcher.handle >= 0 && !self->launcher.is_daemon
                     ? fsdp_launcher_output(&self->launcher, STDERR_FILENO)
                     : -1;
  if (terminal >= 0) {
    dup2(terminal, STDERR_FILENO);
    close(terminal);
  }
  self->ticked_ms = fsdp_now_ms();
  for (int i = 0; i < self->count; i++) {
    member *m = &self->members[i];
    m->handle = (int)syscall(SYS_pidfd_open, m->process, 0);
    m->beat_ms = self->ticked_ms;
  }
  // Without process handles there is no guard, as every rank would look ended.
  while (!tick(self)) sleep_a_tick(self);
  _exit(0);
}

void fsdp_guard_start(const fsdp_guard_config *config) {
  guard self = {.shared = config->memory,
                .slots = fsdp_watch_slots(config->memory),
                .owns_launcher = config->owns_launcher,
                .has_terminal = true,
                .patience_ms = LEAVE_MS};
  snprintf(self.host, sizeof self.host, "%s", config->host);
  self.members = fsdp_alloc_zeroed((size_t)config->size, sizeof *self.members);
  self.polls = fsdp_alloc_zeroed((size_t)config->size + 1, sizeof *self.polls);
  for (int r = 0; r < config->size; r++) {
    if (config->node[r] == config->node[config->rank])
      self.members[self.count++] = (member){.rank = r, .process = config->process[r]};
    else
      self.several_nodes = true;
  }
  int probe = (int)syscall(SYS_pidfd_open, getpid(), 0);
  if (probe >= 0) {
    close(probe);
    atomic_store(&self.shared->limit_ms,
                 fsdp_watch_judged_ms(FSDP_WATCH_LIMIT_S)); // no watch of the node has begun
    self.launcher = fsdp_launcher_find(); // not below: after this process's end its parent is another
    fflush(NULL);
    if (fork() == 0) run(&self);
    fsdp_launcher_close(&self.launcher);
  }
  free(self.polls);
  free(self.members);
}
