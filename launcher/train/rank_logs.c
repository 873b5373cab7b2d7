#include "launcher/train/rank_logs.h"

#include "runtime/comm/error_file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PATH_BYTES  4096
#define CHUNK_BYTES 16384

// Creates the folder and those above it; false with the reason in errno.
static bool make_folders(const char *folder) {
  char path[PATH_BYTES];
  snprintf(path, sizeof path, "%s", folder);
  for (char *at = path + 1; *at; at++) {
    if (*at != '/') continue;
    *at = 0;
    if (mkdir(path, 0777) != 0 && errno != EEXIST) return false;
    *at = '/';
  }
  return mkdir(path, 0777) == 0 || errno == EEXIST;
}

// ---- The process between a rank and its terminal; only calls that are safe after a fork among threads

static void write_all(int file, const char *data, ssize_t bytes) {
  for (ssize_t done = 0; done < bytes;) {
    ssize_t count = write(file, data + done, (size_t)(bytes - done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return; // a terminal that is gone, a full disk: the other copy continues
    done += count;
  }
}

// Passes on what comes, until both ends are closed.
static void pass_on(const int from[2], const int to[2], int log) {
  char data[CHUNK_BYTES];
  struct pollfd ends[2] = {{.fd = from[0], .events = POLLIN}, {.fd = from[1], .events = POLLIN}};
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    if (poll(ends, 2, -1) < 0 && errno != EINTR) return;
    for (int i = 0; i < 2; i++) {
      if (ends[i].fd < 0 || !ends[i].revents) continue;
      ssize_t got = read(ends[i].fd, data, sizeof data);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        ends[i].fd = -1;
        continue;
      }
      write_all(log, data, got); // first: the terminal may block
      write_all(to[i], data, got);
    }
  }
}

static void close_from(int first) {
  if (syscall(SYS_close_range, (unsigned)first, ~0u, 0) == 0) return;
  for (int i = first; i < 1024; i++) close(i);
}

// In a session of its own, as mpirun ends a rank's whole group, with the five files that it needs and no
// others: peers see a rank's connections close when it ends.
static void run_child(const int pipes[2][2], int log) {
  setsid();
  const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2};
  for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) signal(ignored[i], SIG_IGN);
  enum { LOG = 3, FIRST = 4, FREE = 6, ABOVE = 64 };
  // Out of the way first, then to their places.
  int high[3] = {fcntl(log, F_DUPFD, ABOVE), fcntl(pipes[0][0], F_DUPFD, ABOVE),
                 fcntl(pipes[1][0], F_DUPFD, ABOVE)};
  for (int i = 0; i < 3; i++) dup2(high[i], LOG + i);
  close_from(FREE);
  pass_on((const int[2]){FIRST, FIRST + 1}, (const int[2]){STDOUT_FILENO, STDERR_FILENO}, LOG);
  _exit(0);
}

static fsdp_status divide_output(int log, fsdp_error *error) {
  int pipes[2][2];
  fflush(NULL);
  bool made = pipe2(pipes[0], O_CLOEXEC) == 0 && pipe2(pipes[1], O_CLOEXEC) == 0;
  pid_t child = made ? fork() : -1;
  if (child < 0) return fsdp_fail(error, FSDP_ERR_INPUT, "--rank-logs: %s", strerror(errno));
  if (child == 0) run_child(pipes, log);
  for (int i = 0; i < 2; i++) {
    dup2(pipes[i][1], STDOUT_FILENO + i);
    close(pipes[i][0]);
    close(pipes[i][1]);
  }
  setvbuf(stdout, NULL, _IOLBF, 0); // as on a terminal
  return FSDP_OK;
}

fsdp_status fsdp_rank_logs_open(const char *folder, fsdp_world *world, fsdp_error *error) {
  error->status = FSDP_OK;
  char path[PATH_BYTES];
  snprintf(path, sizeof path, "%.4000s/rank-%d.log", folder, world->rank);
  int log = strlen(folder) < 2000 && make_folders(folder)
                ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)
                : -1;
  if (log < 0) {
    fsdp_fail(error, FSDP_ERR_INPUT, "--rank-logs %.400s cannot be written (%s): give another folder", folder,
              strerror(errno));
  } else {
    divide_output(log, error);
    close(log);
  }
  // Everyone after rank 0, which clears the error file.
  if (world->rank == 0) fsdp_error_file_open(folder, 0, world->host, true);
  if (fsdp_world_share_error(world, error) != FSDP_OK) return error->status;
  if (world->rank != 0) fsdp_error_file_open(folder, world->rank, world->host, false);
  return FSDP_OK;
}

void fsdp_rank_logs_note(const fsdp_world *world, const fsdp_error *error) {
  int failed = world->failed_rank < world->size ? world->failed_rank : 0;
  if (world->rank != failed) return;
  fsdp_board_view view;
  fsdp_board_read(fsdp_board_mine, &view);
  fsdp_error_file_write(&(fsdp_error_report){.rank = world->rank,
                                             .host = world->host,
                                             .process = getpid(),
                                             .step = fsdp_board_step(&view),
                                             .status = (int)error->status,
                                             .message = error->message});
}
