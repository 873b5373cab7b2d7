#include "launcher/report/whole_file.h"

#include "runtime/base/check.h"
#include "runtime/base/paths.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

fsdp_status fsdp_whole_file_open(const char *option, const char *path, fsdp_whole_file *file,
                                 fsdp_error *error) {
  size_t bytes = strlen(path) + 32;
  struct stat status;
  bool exists = stat(path, &status) == 0;
  // The file beside it could be written, and not take its name.
  if (exists && S_ISDIR(status.st_mode))
    return fsdp_fail(error, FSDP_ERR_INPUT, "--%s '%.600s' is a folder: name a file in it", option, path);
  *file = (fsdp_whole_file){.option = option, .path = path, .temporary = fsdp_alloc(bytes)};
  file->in_place = exists && !S_ISREG(status.st_mode); // a device, a pipe: it stays
  if (file->in_place)
    snprintf(file->temporary, bytes, "%s", path);
  else
    snprintf(file->temporary, bytes, "%s.%ld.tmp", path, (long)getpid());
  if (fsdp_make_parents(path)) file->out = fopen(file->temporary, "we");
  if (file->out) return FSDP_OK;
  int reason = errno;
  free(file->temporary);
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "--%s '%.600s' cannot be written (%s): use a folder that you may write to", option, path,
                   strerror(reason));
}

// The reason of an earlier failed write, which left none: the next write fails for the same.
static int find_reason(FILE *out) {
  clearerr(out);
  errno = 0;
  bool written = fputc(' ', out) != EOF && fflush(out) == 0;
  return !written && errno ? errno : ENOSPC;
}

fsdp_status fsdp_whole_file_close(fsdp_whole_file *file, fsdp_error *error) {
  int reason = ferror(file->out) && !file->reason ? find_reason(file->out) : file->reason;
  bool written = fflush(file->out) == 0 && (file->in_place || fsync(fileno(file->out)) == 0);
  if (!written && !reason) reason = errno;
  written = fclose(file->out) == 0 && !reason;
  if (!written && !reason) reason = errno;
  written = written && (file->in_place || rename(file->temporary, file->path) == 0);
  if (!written && !reason) reason = errno;
  fsdp_status status = FSDP_OK;
  if (!written) {
    status = fsdp_fail(error, FSDP_ERR_INPUT, "--%s '%.600s' cannot be written (%s): make room on the disk",
                       file->option, file->path, strerror(reason));
    if (!file->in_place) unlink(file->temporary);
  }
  free(file->temporary);
  return status;
}

fsdp_status fsdp_whole_file_try(const char *option, const char *path, fsdp_error *error) {
  fsdp_whole_file file;
  fsdp_status status = fsdp_whole_file_open(option, path, &file, error);
  if (status != FSDP_OK) return status;
  fclose(file.out);
  if (!file.in_place) unlink(file.temporary);
  free(file.temporary);
  return FSDP_OK;
}
