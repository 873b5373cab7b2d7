#include "runtime/checkpoint/checkpoint_lock.h"

#include "runtime/base/clock.h"
#include "runtime/base/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES   4352
#define HOLDER_BYTES 512
#define PAUSE_MS     100

static int (*lock_file)(int descriptor, int operation) = flock;

void fsdp_checkpoint_lock_set_flock(int (*call)(int descriptor, int operation)) {
  lock_file = call ? call : flock;
}

typedef struct attempt {
  const char *folder;
  char lock[PATH_BYTES], held[PATH_BYTES];
  char mine[HOLDER_BYTES];
} attempt;

typedef enum outcome { TAKEN, BUSY, NO_FLOCK, FAILED } outcome;

// ---- Who holds it

// The number that the kernel gave a process at its start (field 22 of its stat), 0 if it is gone.
static uint64_t start_of(long process) {
  char path[64], text[1024];
  uint64_t start = 0;
  snprintf(path, sizeof path, "/proc/%ld/stat", process);
  FILE *file = fopen(path, "re");
  const char *at = file && fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
  for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
  if (at) start = strtoull(at + 1, NULL, 10);
  if (file) fclose(file);
  return start;
}

// The running kernel and its process numbers: what tells that a number means a process of this machine.
static void machine_of(char out[128]) {
  char boot[64] = "?", space[48] = "?";
  FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
  if (file && fgets(boot, sizeof boot, file)) boot[strcspn(boot, "\n")] = 0;
  if (file) fclose(file);
  ssize_t length = readlink("/proc/self/ns/pid", space, sizeof space - 1);
  if (length > 0) space[length] = 0;
  snprintf(out, 128, "%s %s", boot, space);
}

// "process 123 on host a\n<machine>\n<start>\n"
static void describe_self(char out[HOLDER_BYTES]) {
  char host[256] = "?", machine[128];
  gethostname(host, sizeof host - 1);
  machine_of(machine);
  snprintf(out, HOLDER_BYTES, "process %ld on host %s\n%s\n%" PRIu64 "\n", (long)getpid(), host, machine,
           start_of(getpid()));
}

// The whole file; empty if it cannot be read.
static void read_holder(const char *path, char out[HOLDER_BYTES]) {
  int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  ssize_t got = descriptor < 0 ? 0 : read(descriptor, out, HOLDER_BYTES - 1);
  out[got > 0 ? got : 0] = 0;
  if (descriptor >= 0) close(descriptor);
}

static void name_holder(const char *path, char out[HOLDER_BYTES]) {
  read_holder(path, out);
  if (strncmp(out, "process ", 8) != 0) snprintf(out, HOLDER_BYTES, "another run");
  out[strcspn(out, "\n")] = 0;
}

// Whether the holder was a process of this machine that has ended.
static bool is_dead(const char *holder) {
  char machine[128];
  long process;
  uint64_t start;
  const char *second = strchr(holder, '\n'), *third = second ? strchr(second + 1, '\n') : NULL;
  machine_of(machine);
  if (!third || sscanf(holder, "process %ld ", &process) != 1 || sscanf(third, "\n%" SCNu64, &start) != 1)
    return false;
  size_t length = (size_t)(third - second - 1);
  if (strlen(machine) != length || memcmp(machine, second + 1, length) != 0) return false;
  return kill((pid_t)process, 0) != 0 && errno == ESRCH ? true : start_of(process) != start;
}

// ---- flock

static bool write_holder(int descriptor, const char *text) {
  size_t bytes = strlen(text);
  return ftruncate(descriptor, 0) == 0 && pwrite(descriptor, text, bytes, 0) == (ssize_t)bytes;
}

// The file may have been removed by a run that ended between opening and locking it.
static bool is_still_named(int descriptor, const char *path) {
  struct stat opened, named;
  return fstat(descriptor, &opened) == 0 && stat(path, &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

static outcome try_flock(const attempt *a, fsdp_checkpoint_lock *lock) {
  int descriptor = open(a->lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (descriptor < 0) return FAILED;
  if (lock_file(descriptor, LOCK_EX | LOCK_NB) == 0 && is_still_named(descriptor, a->lock)) {
    write_holder(descriptor, a->mine); // a full disk: the lock does not depend on what it says
    lock->descriptor = descriptor;
    return TAKEN;
  }
  int reason = errno;
  close(descriptor);
  errno = reason;
  bool none = reason == ENOLCK || reason == ENOSYS || reason == EOPNOTSUPP || reason == EINVAL;
  return none ? NO_FLOCK : BUSY;
}

// ---- A file that only one process can create

static outcome create_held(const attempt *a, fsdp_checkpoint_lock *lock) {
  int descriptor = open(a->held, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) return errno == EEXIST ? BUSY : FAILED;
  bool written = write_holder(descriptor, a->mine);
  int reason = errno;
  close(descriptor);
  if (!written) unlink(a->held);
  errno = reason;
  lock->held = written;
  return written ? TAKEN : FAILED;
}

// Removes what a dead process left. Two that see it may both come here: the second finds the first one's
// file in its place and gives it back.
static void remove_dead(const attempt *a, const char *dead) {
  char aside[PATH_BYTES + 32], found[HOLDER_BYTES];
  snprintf(aside, sizeof aside, "%s.%ld", a->held, (long)getpid());
  if (rename(a->held, aside) != 0) return;
  read_holder(aside, found);
  if (strcmp(found, dead) == 0 || link(aside, a->held) == 0 || errno == EEXIST) unlink(aside);
}

static outcome try_held(const attempt *a, fsdp_checkpoint_lock *lock) {
  char holder[HOLDER_BYTES];
  outcome done = create_held(a, lock);
  if (done != BUSY) return done;
  read_holder(a->held, holder);
  if (!is_dead(holder)) return BUSY;
  remove_dead(a, holder);
  return create_held(a, lock);
}

// ---- The lock

static fsdp_status fail_busy(const attempt *a, bool held, fsdp_error *error) {
  char holder[HOLDER_BYTES];
  struct stat information;
  name_holder(held ? a->held : a->lock, holder);
  if (!held)
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: another run writes into this experiment (%s); end it, or give this one a different "
                     "name with -e",
                     a->folder, holder);
  bool found = stat(a->held, &information) == 0;
  long minutes = found ? (long)(time(NULL) - information.st_mtime) / 60 : 0;
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "%s: another run writes into this experiment (%s, since %ld min; this file system has no "
                   "locks); end it, or give this one a different name with -e; if it has ended, remove %s",
                   a->folder, holder, minutes, a->held);
}

fsdp_status fsdp_checkpoint_lock_take(const char *folder, int wait_ms, fsdp_checkpoint_wait waiting,
                                      fsdp_checkpoint_lock *lock, fsdp_error *error) {
  attempt a = {.folder = folder};
  *lock = FSDP_CHECKPOINT_UNLOCKED;
  snprintf(a.lock, sizeof a.lock, "%.4095s/.lock", folder);
  snprintf(a.held, sizeof a.held, "%.4095s/.lock.held", folder);
  describe_self(a.mine);
  for (;;) {
    outcome done = try_flock(&a, lock);
    bool held = done == NO_FLOCK;
    if (held) done = try_held(&a, lock);
    if (done == TAKEN) return FSDP_OK;
    if (done == FAILED) return fsdp_fail_write(folder, "locking it", error);
    if (wait_ms <= 0) return fail_busy(&a, held, error);
    char holder[HOLDER_BYTES];
    name_holder(held ? a.held : a.lock, holder);
    if (waiting) waiting(folder, holder, wait_ms);
    waiting = NULL;
    fsdp_sleep_ms(PAUSE_MS);
    wait_ms -= PAUSE_MS;
  }
}

void fsdp_checkpoint_lock_release(const char *folder, fsdp_checkpoint_lock *lock) {
  char path[PATH_BYTES];
  snprintf(path, sizeof path, "%.4095s/.lock", folder);
  if (lock->descriptor >= 0 || lock->held) unlink(path);
  if (lock->descriptor >= 0) close(lock->descriptor);
  snprintf(path, sizeof path, "%.4095s/.lock.held", folder);
  if (lock->held) unlink(path);
  *lock = FSDP_CHECKPOINT_UNLOCKED;
}
