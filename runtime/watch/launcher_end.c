#include "runtime/watch/launcher_end.h"

#include "runtime/base/size.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define ANCESTORS_MAX 8
// What is on its way to the terminal passes through mpirun.
#define LEFT_ALONE_MS 500
#define BETWEEN_MS    100
#define KILLED_MS     1000
// mpirun takes two seconds to end what is left of a job, twice odls_base_sigkill_timeout; its daemons follow.
#define LAUNCHER_MS 2500
#define DAEMON_MS   2000

// Name and parent of a process, from "PID (NAME) STATE PARENT ...".
static bool read_status(int process, char name[32], int *parent) {
  char path[64], line[256];
  snprintf(path, sizeof path, "/proc/%d/stat", process);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  ssize_t length = read(file, line, sizeof line - 1);
  close(file);
  if (length <= 0) return false;
  line[length] = 0;
  const char *begin = strchr(line, '('), *end = strrchr(line, ')');
  if (!begin || !end || sscanf(end + 1, " %*c %d", parent) != 1) return false;
  snprintf(name, 32, "%.*s", (int)(end - begin - 1), begin + 1);
  return true;
}

static bool is_launcher(const char *name) {
  static const char *const names[] = {"mpirun", "mpiexec", "orterun", "orted", "prterun", "prted"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (strcmp(name, names[i]) == 0) return true;
  }
  return false;
}

fsdp_launcher fsdp_launcher_find(void) {
  fsdp_launcher none = {.process = -1, .handle = -1};
  int process = getppid();
  for (int i = 0; i < ANCESTORS_MAX && process > 1; i++) {
    char name[32];
    int parent;
    if (!read_status(process, name, &parent)) return none;
    if (is_launcher(name)) {
      // The handle is opened before the question is asked again: the number cannot be another process's then.
      int handle = (int)syscall(SYS_pidfd_open, process, 0);
      if (handle < 0) return none;
      fsdp_launcher found = {.process = process,
                             .handle = handle,
                             .is_parent = i == 0,
                             .is_daemon = strcmp(name, "orted") == 0 || strcmp(name, "prted") == 0};
      if (read_status(process, name, &parent) && is_launcher(name)) return found;
      close(handle);
      return none;
    }
    process = parent;
  }
  return none;
}

void fsdp_launcher_close(fsdp_launcher *launcher) {
  if (launcher->handle >= 0) close(launcher->handle);
  launcher->handle = -1;
}

bool fsdp_launcher_has_ended(const fsdp_launcher *launcher, int ms) {
  struct pollfd end = {.fd = launcher->handle, .events = POLLIN};
  return launcher->handle < 0 || poll(&end, 1, ms) > 0;
}

void fsdp_launcher_end(const fsdp_launcher *launcher) {
  const int signals[] = {SIGTERM, SIGTERM, SIGKILL};
  const int after_ms[] = {LEFT_ALONE_MS, BETWEEN_MS, 5 * BETWEEN_MS};
  for (int i = 0; i < 3 && !fsdp_launcher_has_ended(launcher, after_ms[i]); i++) {
    syscall(SYS_pidfd_send_signal, launcher->handle, signals[i], NULL, 0);
  }
  fsdp_launcher_has_ended(launcher, KILLED_MS); // who has claimed it keeps the claim until then
}

int fsdp_launcher_output(const fsdp_launcher *launcher, int number) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", launcher->process, number);
  int own = open(path, O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
#ifdef SYS_pidfd_getfd
  // mpirun writes into a file where it was, and so over what was appended, unless the place is shared.
  struct stat information;
  bool is_file = own >= 0 && fstat(own, &information) == 0 && S_ISREG(information.st_mode);
  int shared = is_file ? (int)syscall(SYS_pidfd_getfd, launcher->handle, number, 0) : -1;
  if (shared >= 0) {
    close(own);
    return shared;
  }
#endif
  return own;
}

int64_t fsdp_launcher_patience_ms(const fsdp_launcher *launcher) {
  const char *asked = getenv("OMPI_MCA_odls_base_sigkill_timeout");
  int64_t kill_ms = asked ? fsdp_max_i64(atoll(asked), 1) * 1000 : 1000;
  return LAUNCHER_MS + 2 * kill_ms + (launcher->is_daemon ? DAEMON_MS : 0);
}

int fsdp_launcher_claim_open(void) {
  return socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

// A name in the node's memory, which one socket can have. Its first byte stays 0: it is no file.
bool fsdp_launcher_claim(const fsdp_launcher *launcher, int socket) {
  struct sockaddr_un name = {.sun_family = AF_UNIX}, has;
  socklen_t bytes = sizeof has;
  if (getsockname(socket, (struct sockaddr *)&has, &bytes) == 0 &&
      bytes > offsetof(struct sockaddr_un, sun_path))
    return true;
  snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "fsdp-failure-of-%d", launcher->process);
  return bind(socket, (const struct sockaddr *)&name, sizeof name) == 0;
}
