#include "launcher/report/whole_file.h"

#include "runtime/base/check.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

fsdp_status fsdp_whole_file_open(const char *option, const char *path, fsdp_whole_file *file,
                                 fsdp_error *error) {
  size_t bytes = strlen(path) + 32;
  *file = (fsdp_whole_file){.option = option, .path = path, .temporary = fsdp_alloc(bytes)};
  snprintf(file->temporary, bytes, "%s.%ld.tmp", path, (long)getpid());
  file->out = fopen(file->temporary, "we");
  if (file->out) return FSDP_OK;
  int reason = errno;
  free(file->temporary);
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "--%s '%.600s' cannot be written (%s): use a folder that exists and that you may write to",
                   option, path, strerror(reason));
}

fsdp_status fsdp_whole_file_close(fsdp_whole_file *file, fsdp_error *error) {
  // A failure in the middle that was not noted has left no reason; a full disk is what it mostly is.
  int reason = ferror(file->out) && !file->reason ? ENOSPC : file->reason;
  bool written = fflush(file->out) == 0 && fsync(fileno(file->out)) == 0;
  if (!written && !reason) reason = errno;
  written = fclose(file->out) == 0 && !reason;
  if (!written && !reason) reason = errno;
  written = written && rename(file->temporary, file->path) == 0;
  if (!written && !reason) reason = errno;
  fsdp_status status = FSDP_OK;
  if (!written) {
    status = fsdp_fail(error, FSDP_ERR_INPUT, "--%s '%.600s' cannot be written (%s): make room on the disk",
                       file->option, file->path, strerror(reason));
    unlink(file->temporary);
  }
  free(file->temporary);
  return status;
}

fsdp_status fsdp_whole_file_try(const char *option, const char *path, fsdp_error *error) {
  fsdp_whole_file file;
  fsdp_status status = fsdp_whole_file_open(option, path, &file, error);
  if (status != FSDP_OK) return status;
  fclose(file.out);
  unlink(file.temporary);
  free(file.temporary);
  return FSDP_OK;
}
