#include "runtime/watch/start_guard.h"

#include "runtime/base/descriptors.h"
#include "runtime/base/job.h"
#include "runtime/base/size.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// Where the guard has its handles.
enum { OF_RANK = STDERR_FILENO + 1, OF_LAUNCHER, OF_CLAIM, HANDLE_COUNT };

// From the end of ranks that mpirun kills to its own, when it has lost a daemon.
#define ENDS_MS 250
// How much earlier an mpirun ends its job where no rank has joined yet.
#define SOONER_MS 1000

typedef struct report {
  int rank, process;
  const char *host;
  int seconds;
  bool one_node;
} report;

// `asked`: mpirun has asked the rank to end, and no reason is reported: another rank may have ended before it
// had a guard, of which mpirun --quiet says nothing.
static void say(const report *r, bool asked) {
  char text[512];
  snprintf(text, sizeof text,
           "a rank has ended before all ranks had joined the job: rank %d (host %s) in process %d was killed "
           "or crashed. What it or the system's log says is the cause. Start again",
           r->rank, r->host, r->process);
  fsdp_job_say(asked ? "mpirun has ended the job before all ranks had joined it: it was told to, or a rank "
                       "had been killed or had crashed before it could say so. Without --quiet mpirun names "
                       "that rank. Start again"
                     : text);
}

// In the child, which has nothing of its parent but memory, standard error and three handles.
static FSDP_NORETURN void run(const fsdp_start_guard *self, const report *r, int rank_handle) {
  prctl(PR_SET_NAME, "fsdp_start"); // who looks for ranks finds no other process
  setsid();
  const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2};
  for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) signal(ignored[i], SIG_IGN);
  const int kept[] = {rank_handle, self->launcher.handle, self->claim};
  int above[3]; // none of them is where another one goes
  for (int i = 0; i < 3; i++) above[i] = fcntl(kept[i], F_DUPFD_CLOEXEC, HANDLE_COUNT);
  for (int i = 0; i < 3; i++) dup2(above[i], OF_RANK + i);
  close(STDIN_FILENO), close(STDOUT_FILENO);
  fsdp_close_from(HANDLE_COUNT);
  fsdp_launcher launcher = self->launcher;
  launcher.handle = OF_LAUNCHER;
  // mpirun waits for the processes that hold its pipes, and no longer reads them when it ends a failed job.
  int terminal = launcher.is_daemon ? -1 : fsdp_launcher_output(&launcher, STDERR_FILENO);
  if (terminal >= 0) {
    dup2(terminal, STDERR_FILENO);
    close(terminal);
  }
  struct pollfd end = {.fd = OF_RANK, .events = POLLIN};
  while (poll(&end, 1, -1) <= 0) continue;
  // The rank has followed it. Of several nodes mpirun may end because of another one, and its ranks first.
  if (fsdp_launcher_has_ended(&launcher, r->one_node ? 0 : ENDS_MS)) _exit(0);
  const bool asked = atomic_load(&self->known->asked);
  // Of several nodes one could not know that another has said why mpirun ends its ranks.
  const bool speaks = (!asked || r->one_node) && !atomic_load(&self->known->said);
  // A claim that was free because mpirun has ended since was another guard's, which has spoken.
  bool said = speaks && fsdp_launcher_claim(&launcher, OF_CLAIM) && !fsdp_launcher_has_ended(&launcher, 0);
  if (said) say(r, asked);
  if (!launcher.is_parent) _exit(0); // who started the rank may have more to do
  const int64_t patience_ms =
      fsdp_min_i64(fsdp_launcher_patience_ms(&launcher) - SOONER_MS, (int64_t)r->seconds * 1000);
  if (!fsdp_launcher_has_ended(&launcher, (int)patience_ms)) {
    if (speaks && !said && fsdp_launcher_claim(&launcher, OF_CLAIM)) say(r, asked);
    fsdp_launcher_end(&launcher);
  }
  _exit(0);
}

void fsdp_start_guard_begin(fsdp_start_guard *self, int rank, const char *host, int seconds, bool one_node) {
  *self = (fsdp_start_guard){.launcher = fsdp_launcher_find(), .claim = -1, .process = -1};
  if (self->launcher.handle < 0) return;
  self->claim = fsdp_launcher_claim_open();
  void *page = mmap(NULL, sizeof *self->known, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int rank_handle = (int)syscall(SYS_pidfd_open, getpid(), 0);
  if (page == MAP_FAILED || self->claim < 0 || rank_handle < 0) return;
  self->known = page;
  fsdp_job_share_asked(&self->known->asked);
  const report r = {
      .rank = rank, .process = getpid(), .host = host, .seconds = seconds, .one_node = one_node};
  fflush(NULL);
  self->process = fork();
  if (self->process == 0) run(self, &r, rank_handle);
  close(rank_handle);
}

bool fsdp_start_guard_claim(const fsdp_start_guard *self) {
  if (self->known) atomic_store(&self->known->said, true);
  return self->claim < 0 || fsdp_launcher_claim(&self->launcher, self->claim);
}

void fsdp_start_guard_end(fsdp_start_guard *self) {
  if (self->process > 0) {
    kill(self->process, SIGKILL);
    waitpid(self->process, NULL, 0);
  }
  if (self->claim >= 0) close(self->claim);
  fsdp_launcher_close(&self->launcher);
}
