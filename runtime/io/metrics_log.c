#include "runtime/io/metrics_log.h"

#include "runtime/base/check.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct fsdp_metrics_log {
  char *path;
  int descriptor;
};

static fsdp_status fail_io(const fsdp_metrics_log *log, const char *what, fsdp_error *error) {
  return fsdp_fail(error, FSDP_ERR_INPUT, "%s: %s failed (%s); give another place with --log", log->path,
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

fsdp_status fsdp_metrics_log_open(const char *path, bool fresh, fsdp_metrics_log **log, fsdp_error *error) {
  fsdp_metrics_log *opened = fsdp_alloc_zeroed(1, sizeof *opened);
  fsdp_status status = FSDP_OK;
  *log = NULL;
  opened->path = strdup(path);
  FSDP_CHECK(opened->path, "out of host memory for a path");
  opened->descriptor = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | (fresh ? O_TRUNC : 0), 0666);
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

fsdp_status fsdp_metrics_log_close(fsdp_metrics_log *log, fsdp_error *error) {
  fsdp_status status = FSDP_OK;
  if (!log) return FSDP_OK;
  if (log->descriptor >= 0 && close(log->descriptor)) status = fail_io(log, "closing it", error);
  free(log->path);
  free(log);
  return status;
}

fsdp_status fsdp_metrics_log_rewind(fsdp_metrics_log *log, const char *key, int64_t last, fsdp_error *error) {
  char *line = NULL;
  size_t capacity = 0;
  ssize_t length;
  int64_t kept = 0;
  struct stat information;
  if (!fstat(log->descriptor, &information) && !S_ISREG(information.st_mode)) return FSDP_OK;
  FILE *file = fopen(log->path, "rb");
  if (!file) return fail_io(log, "reading it", error);
  while ((length = getline(&line, &capacity, file)) > 0) {
    json_t *record = json_loadb(line, (size_t)length, 0, NULL);
    const json_t *value = json_object_get(record, key);
    bool keep = json_is_integer(value) && json_integer_value(value) <= last;
    json_decref(record);
    if (!keep) break;
    kept += length;
  }
  free(line);
  fclose(file);
  return ftruncate(log->descriptor, (off_t)kept) ? fail_io(log, "cutting it", error) : FSDP_OK;
}

fsdp_status fsdp_metrics_log_write(fsdp_metrics_log *log, const json_t *record, fsdp_error *error) {
  char *text = json_dumps(record, JSON_COMPACT | JSON_REAL_PRECISION(12));
  FSDP_CHECK(text, "a record that is no JSON object");
  size_t length = strlen(text);
  text = fsdp_realloc(text, length + 1);
  text[length++] = '\n'; // in the place of the terminator
  ssize_t put;
  do put = write(log->descriptor, text, length);
  while (put < 0 && errno == EINTR);
  free(text);
  if (put == (ssize_t)length) return FSDP_OK;
  fsdp_status status = put < 0 ? fail_io(log, "writing", error)
                               : fsdp_fail(error, FSDP_ERR_INPUT,
                                           "%s: the disk is full; make room or give another place "
                                           "with --log",
                                           log->path);
  // The first failure is the one to tell; if this fails too, the next opening cuts the line.
  (void)!cut_unfinished(log);
  return status;
}

json_t *fsdp_metrics_number(double value) {
  return isfinite(value) ? json_real(value) : json_null();
}
