#include "launcher/train/rank_logs.h"

#include "runtime/base/descriptors.h"
#include "runtime/base/paths.h"
#include "runtime/watch/error_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define PATH_BYTES  4096
#define CHUNK_BYTES 16384
// What the writer may be behind, and how long it has at the end.
#define RECORDS_BYTES (1 << 20)
#define LAST_WORDS_MS 1000

// ---- The two processes between a rank and its outputs; only calls that are safe after a fork among threads

// Of the rank and its two processes, before each keeps its own.
typedef struct lines {
  int outputs[2][2];        // from the rank's two streams to the divider
  int records[2];           // to the writer; writing never blocks
  int status[2];            // from the writer: the errno of its first failure; closed when it ends
  int log, rank;            // the file
  const char *folder;       // as given
  const char *program_name; // for warnings
} lines;

// Leaves the process group, which mpirun ends with the rank, and the signals that go to it, and keeps these
// files alone, as 0, 1, ... (-1: nothing there).
static void become_small(const int *keep, int count) {
  setsid();
  const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2};
  for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) signal(ignored[i], SIG_IGN);
  enum { ABOVE = 64, KEPT_MAX = 8 };
  int high[KEPT_MAX]; // out of the way first, then to their places
  for (int i = 0; i < count; i++) high[i] = keep[i] < 0 ? -1 : fcntl(keep[i], F_DUPFD, ABOVE);
  for (int i = 0; i < count; i++) {
    if (high[i] < 0)
      close(i);
    else
      dup2(high[i], i);
  }
  fsdp_close_from(count);
}

// Copies the pipe to the file until it has no writer. A disk may block it for ever.
static void run_writer(const lines *l) {
  enum { FROM, LOG, STATUS, COUNT };
  become_small((const int[COUNT]){l->records[0], l->log, l->status[1]}, COUNT);
  char data[CHUNK_BYTES];
  bool failed = false;
  for (ssize_t got; (got = read(FROM, data, sizeof data)) != 0;) {
    if (got < 0 && errno != EINTR) break;
    if (got < 0 || fsdp_write_all(LOG, data, got)) continue;
    int reason = errno;
    if (!failed) fsdp_write_all(STATUS, &reason, sizeof reason);
    failed = true; // there may be room again later
  }
  _exit(0);
}

enum { TERMINAL_OUT, TERMINAL_ERROR, FROM_OUT, FROM_ERROR, RECORDS, WRITER, DIVIDER_COUNT };

// What the divider knows of the writer.
typedef struct records {
  const lines *lines;
  int64_t left_out, untold; // bytes that did not fit, in all and since the file's last line about it
  bool failed;              // the writer has reported so
} records;

__attribute__((format(printf, 2, 3))) static void warn(const records *r, const char *format, ...) {
  char text[512], line[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  int length = snprintf(line, sizeof line, "%s: warning: %.400s/rank-%d.log %s\n", r->lines->program_name,
                        r->lines->folder, r->lines->rank, text);
  fsdp_write_all(TERMINAL_ERROR, line, length);
}

// A piece that a pipe takes whole or not at all.
static bool put(const char *data, size_t bytes) {
  return write(RECORDS, data, bytes) == (ssize_t)bytes;
}

static void record(records *r, const char *data, size_t bytes) {
  for (size_t done = 0, piece; done < bytes; done += piece) {
    piece = bytes - done < PIPE_BUF ? bytes - done : PIPE_BUF;
    // Whole lines, if there are any: the rank's own message may come between two pieces.
    const char *newline = memrchr(data + done, '\n', piece);
    if (newline) piece = (size_t)(newline - data) + 1 - done;
    if (r->untold > 0) {
      char line[96];
      int length = snprintf(line, sizeof line, "\n[%lld bytes left out: the disk was too slow]\n",
                            (long long)r->untold);
      if (put(line, (size_t)length)) r->untold = 0;
    }
    if (r->untold == 0 && put(data + done, piece)) continue;
    r->left_out += (int64_t)piece;
    r->untold += (int64_t)piece;
  }
}

// Reads the writer's report. False when the writer has ended.
static bool hear_writer(records *r) {
  int reason;
  ssize_t got = read(WRITER, &reason, sizeof reason);
  if (got == (ssize_t)sizeof reason && !r->failed) {
    warn(r, "cannot be written (%s); the run continues without it, until there is room", strerror(reason));
    r->failed = true;
  }
  return got > 0 || (got < 0 && errno == EINTR);
}

// Passes on what comes, until both ends are closed. The terminal may block it, the file does not.
static void pass_on(records *r) {
  char data[CHUNK_BYTES];
  struct pollfd ends[] = {{.fd = FROM_OUT, .events = POLLIN},
                          {.fd = FROM_ERROR, .events = POLLIN},
                          {.fd = WRITER, .events = POLLIN}};
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    if (poll(ends, 3, -1) < 0 && errno != EINTR) return;
    if (ends[2].fd >= 0 && ends[2].revents && !hear_writer(r)) ends[2].fd = -1;
    for (int i = 0; i < 2; i++) {
      if (ends[i].fd < 0 || !ends[i].revents) continue;
      ssize_t got = read(ends[i].fd, data, sizeof data);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        ends[i].fd = -1;
        continue;
      }
      record(r, data, (size_t)got);                // first: the terminal may block
      fsdp_write_all(TERMINAL_OUT + i, data, got); // it may be gone
    }
  }
}

static void run_divider(const lines *l) {
  become_small((const int[DIVIDER_COUNT]){STDOUT_FILENO, STDERR_FILENO, l->outputs[0][0], l->outputs[1][0],
                                          l->records[1], l->status[0]},
               DIVIDER_COUNT);
  records r = {.lines = l};
  pass_on(&r);
  close(RECORDS);
  // So that the file is whole when the job has ended; mpirun waits for the processes that hold its terminal.
  struct pollfd writer = {.fd = WRITER, .events = POLLIN};
  bool writes = true;
  while (writes && poll(&writer, 1, LAST_WORDS_MS) > 0) writes = hear_writer(&r);
  if (r.left_out > 0) warn(&r, "lacks %lld bytes: its disk was too slow", (long long)r.left_out);
  if (writes && !r.failed) warn(&r, "may lack its end: its disk hangs");
  _exit(0);
}

static void close_pair(const int ends[2]) {
  if (ends[0] >= 0) close(ends[0]);
  if (ends[1] >= 0) close(ends[1]);
}

static fsdp_status divide_output(lines *l, fsdp_error *error) {
  for (int i = 0; i < 2; i++) l->outputs[0][i] = l->outputs[1][i] = l->records[i] = l->status[i] = -1;
  fflush(NULL);
  bool made = pipe2(l->outputs[0], O_CLOEXEC) == 0 && pipe2(l->outputs[1], O_CLOEXEC) == 0 &&
              pipe2(l->records, O_CLOEXEC) == 0 && pipe2(l->status, O_CLOEXEC) == 0;
  // Of the writing end alone; a larger pipe only helps, and may be refused.
  made = made && fcntl(l->records[1], F_SETFL, O_NONBLOCK) == 0;
  if (made) fcntl(l->records[1], F_SETPIPE_SZ, RECORDS_BYTES);
  int terminal = made ? fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0) : -1;
  pid_t writer = terminal >= 0 ? fork() : -1;
  if (writer == 0) prctl(PR_SET_NAME, "fsdp_log"), run_writer(l);
  pid_t divider = writer > 0 ? fork() : -1;
  if (divider == 0) prctl(PR_SET_NAME, "fsdp_log"), run_divider(l);
  fsdp_status status = FSDP_OK;
  if (divider < 0) {
    status = fsdp_fail(error, FSDP_ERR_INPUT, "--rank-logs: %s", strerror(errno));
    close_pair(l->records);
    if (terminal >= 0) close(terminal);
  } else {
    for (int i = 0; i < 2; i++) dup2(l->outputs[i][1], STDOUT_FILENO + i);
    close(l->records[0]);
    fsdp_job_set_outputs(terminal, l->records[1]);
    setvbuf(stdout, NULL, _IOLBF, 0); // as on a terminal
  }
  close_pair(l->outputs[0]), close_pair(l->outputs[1]), close_pair(l->status);
  return status;
}

fsdp_status fsdp_rank_logs_open(const char *folder, fsdp_world *world, fsdp_error *error) {
  error->status = FSDP_OK;
  char path[PATH_BYTES];
  snprintf(path, sizeof path, "%.4000s/rank-%d.log", folder, world->rank);
  int log = strlen(folder) < 2000 && fsdp_make_folders(folder)
                ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)
                : -1;
  if (log < 0) {
    fsdp_fail(error, FSDP_ERR_INPUT, "--rank-logs %.400s cannot be written (%s): name a different folder",
              folder, strerror(errno));
  } else {
    lines l = {
        .log = log, .rank = world->rank, .folder = folder, .program_name = program_invocation_short_name};
    divide_output(&l, error);
    close(log);
  }
  fsdp_watch_set_folder(world->watch, folder);
  // Everyone after rank 0, which clears the error file.
  if (world->rank == 0) fsdp_error_file_open(folder, 0, world->host, true);
  if (fsdp_world_share_error(world, error) != FSDP_OK) return error->status;
  if (world->rank != 0) fsdp_error_file_open(folder, world->rank, world->host, false);
  return FSDP_OK;
}

void fsdp_rank_logs_note(const fsdp_world *world, const fsdp_error *error) {
  int failed = world->failed_rank < world->size ? world->failed_rank : 0;
  if (world->rank != failed) return;
  fsdp_error_file_write(
      &(fsdp_job_end){world->rank, world->host, getpid(), error->status, error->message, 0});
}
