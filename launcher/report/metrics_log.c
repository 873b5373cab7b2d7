#include "launcher/report/metrics_log.h"

#include "runtime/base/check.h"
#include "runtime/base/paths.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// More than this is not kept for a disk that stays full: a day of one line per second.
#define KEPT_BYTES_MAX ((size_t)64 << 20)

struct fsdp_metrics_log {
  char *path;
  int descriptor;
  bool made;  // it was not there before
  bool torn;  // the file ends in a part of a line
  char *kept; // whole lines that are not in the file yet
  size_t kept_bytes;
  int64_t lost_lines;
};

static fsdp_status fail_io(const fsdp_metrics_log *log, const char *what, fsdp_error *error) {
  return fsdp_fail(error, FSDP_ERR_INPUT, "%s: %s failed (%s); name a different file with --log", log->path,
                   what, strerror(errno));
}

// The length of the file up to the end of its last whole line, or -1.
static int64_t whole_lines_bytes(const fsdp_metrics_log *log) {
  char block[4096];
  struct stat information;
  if (fstat(log->descriptor, &information)) return -1;
  int64_t end = information.st_size;
  while (end > 0) {
    int64_t begin = end > (int64_t)sizeof block ? end - (int64_t)sizeof block : 0;
    ssize_t got = pread(log->descriptor, block, (size_t)(end - begin), (off_t)begin);
    if (got <= 0) return -1;
    const char *newline = memrchr(block, '\n', (size_t)got);
    if (newline) return begin + (newline - block) + 1;
    end = begin;
  }
  return 0;
}

static bool cut_unfinished(const fsdp_metrics_log *log) {
  struct stat information;
  if (!fstat(log->descriptor, &information) && !S_ISREG(information.st_mode))
    return true; // /dev/null keeps nothing
  int64_t end = whole_lines_bytes(log);
  return end >= 0 && !ftruncate(log->descriptor, (off_t)end);
}

fsdp_status fsdp_metrics_log_open(const char *path, fsdp_metrics_log **log, fsdp_error *error) {
  fsdp_metrics_log *opened = fsdp_alloc_zeroed(1, sizeof *opened);
  fsdp_status status = FSDP_OK;
  *log = NULL;
  opened->path = strdup(path);
  FSDP_NEED_MEMORY(opened->path, "a path");
  opened->made = access(path, F_OK) != 0;
  opened->descriptor = -1;
  if (fsdp_make_parents(path)) opened->descriptor = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (opened->descriptor < 0) {
    status = fail_io(opened, "opening it", error);
  } else if (!cut_unfinished(opened)) {
    status = fail_io(opened, "cutting its last line", error);
  }
  if (status)
    fsdp_metrics_log_close(opened, NULL);
  else
    *log = opened;
  return status;
}

static int64_t count_lines(const char *text, size_t bytes) {
  int64_t lines = 0;
  for (size_t i = 0; i < bytes; i++) lines += text[i] == '\n';
  return lines;
}

static void drop_kept(fsdp_metrics_log *log, size_t bytes) {
  log->kept_bytes -= bytes;
  memmove(log->kept, log->kept + bytes, log->kept_bytes);
}

// Writes the kept lines. False, with the reason in errno, if not all of them are in the file; those that
// are not stay, and no part of a line is left.
static bool write_kept(fsdp_metrics_log *log) {
  if (log->torn && !cut_unfinished(log)) return false;
  log->torn = false;
  ssize_t put = 0;
  while (log->kept_bytes > 0) {
    put = write(log->descriptor, log->kept, log->kept_bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    if ((size_t)put == log->kept_bytes) break;
    const char *newline = memrchr(log->kept, '\n', (size_t)put);
    drop_kept(log, newline ? (size_t)(newline - log->kept) + 1 : 0);
    log->torn = !cut_unfinished(log);
    errno = ENOSPC; // what a partial write means
    return false;
  }
  log->kept_bytes = 0;
  return true;
}

fsdp_status fsdp_metrics_log_close(fsdp_metrics_log *log, fsdp_error *error) {
  fsdp_status status = FSDP_OK;
  if (!log) return FSDP_OK;
  if (log->kept_bytes > 0) write_kept(log);
  int64_t missing = log->lost_lines + count_lines(log->kept, log->kept_bytes);
  if (missing > 0) {
    status = fsdp_fail(error, FSDP_ERR_INPUT, "%s: %lld of its lines could not be written", log->path,
                       (long long)missing);
  }
  struct stat information;
  bool empty = log->made && !fstat(log->descriptor, &information) && information.st_size == 0;
  if (log->descriptor >= 0 && close(log->descriptor) && !status) status = fail_io(log, "closing it", error);
  if (empty) unlink(log->path);
  free(log->kept);
  free(log->path);
  free(log);
  return status;
}

// The line's integer member `key`; false if there is none.
static bool read_member(const char *line, size_t bytes, const char *key, int64_t *value) {
  json_t *record = json_loadb(line, bytes, 0, NULL);
  const json_t *member = json_object_get(record, key);
  bool found = json_is_integer(member);
  if (found) *value = json_integer_value(member);
  json_decref(record);
  return found;
}

fsdp_status fsdp_metrics_log_rewind(fsdp_metrics_log *log, const char *key, int64_t last,
                                    fsdp_metrics_rewound *rewound, fsdp_error *error) {
  char *line = NULL;
  size_t capacity = 0;
  ssize_t length;
  int64_t kept = 0, kept_lines = 0, at = 0, number = 0, unread = 0;
  struct stat information;
  *rewound = (fsdp_metrics_rewound){0};
  if (!fstat(log->descriptor, &information) && !S_ISREG(information.st_mode)) return FSDP_OK;
  FILE *file = fopen(log->path, "rb");
  if (!file) return fail_io(log, "reading it", error);
  while ((length = getline(&line, &capacity, file)) > 0) {
    int64_t value;
    number++;
    at += length;
    if (!read_member(line, (size_t)length, key, &value)) {
      if (!unread) unread = number;
      continue;
    }
    if (value > last) break;
    kept = at;
    kept_lines = number;
    rewound->damaged = unread;
  }
  while (length > 0 && (length = getline(&line, &capacity, file)) > 0) number++;
  rewound->dropped = number - kept_lines;
  free(line);
  fclose(file);
  return ftruncate(log->descriptor, (off_t)kept) ? fail_io(log, "cutting it", error) : FSDP_OK;
}

bool fsdp_metrics_log_holds(const char *path) {
  struct stat information;
  return stat(path, &information) == 0 && S_ISREG(information.st_mode) && information.st_size > 0;
}

bool fsdp_metrics_log_is_other(const char *path, const char *key) {
  char *line = NULL;
  size_t capacity = 0;
  ssize_t length;
  int64_t value, number = 0;
  bool is_log = false;
  FILE *file = fsdp_metrics_log_holds(path) ? fopen(path, "rb") : NULL;
  if (!file) return false;
  while (!is_log && (length = getline(&line, &capacity, file)) > 0)
    is_log = read_member(line, (size_t)length, key, &value) ||
             (++number == 1 && line[0] == '{' && line[length - 1] != '\n');
  free(line);
  fclose(file);
  return !is_log;
}

const char *fsdp_metrics_log_path(const fsdp_metrics_log *log) {
  return log->path;
}

fsdp_status fsdp_metrics_log_write(fsdp_metrics_log *log, const json_t *record, fsdp_error *error) {
  char *text = json_dumps(record, JSON_COMPACT | JSON_REAL_PRECISION(12));
  FSDP_CHECK(text, "a record that is no JSON object");
  size_t length = strlen(text);
  text[length++] = '\n'; // in the place of the terminator
  while (log->kept_bytes > 0 && log->kept_bytes + length > KEPT_BYTES_MAX) {
    const char *newline = memchr(log->kept, '\n', log->kept_bytes);
    drop_kept(log, newline ? (size_t)(newline - log->kept) + 1 : log->kept_bytes);
    log->lost_lines++;
  }
  log->kept = fsdp_realloc(log->kept, log->kept_bytes + length);
  memcpy(log->kept + log->kept_bytes, text, length);
  log->kept_bytes += length;
  free(text);
  if (write_kept(log)) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT, "%s: writing failed (%s)", log->path, strerror(errno));
}

json_t *fsdp_metrics_number(double value) {
  return isfinite(value) ? json_real(value) : json_null();
}
