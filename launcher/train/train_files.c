#include "launcher/train/train_files.h"

#include "runtime/base/check.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES 4096

// mkdir -p.
static bool make_folders(char *path) {
  for (char *at = path + 1; *at; at++) {
    if (*at != '/') continue;
    *at = 0;
    bool made = mkdir(path, 0777) == 0 || errno == EEXIST;
    *at = '/';
    if (!made) return false;
  }
  return mkdir(path, 0777) == 0 || errno == EEXIST;
}

fsdp_status fsdp_train_make_folder(const fsdp_options *options, char *path, size_t path_bytes,
                                   fsdp_error *error) {
  int length = snprintf(path, path_bytes, "%s/%s", options->save_dir, options->experiment);
  if (length < 0 || length >= (int)path_bytes - 16) {
    return fsdp_fail(error, FSDP_ERR_INPUT, "--save-dir '%.200s...': the path is too long",
                     options->save_dir);
  }
  if (make_folders(path)) return FSDP_OK;
  return fsdp_fail(
      error, FSDP_ERR_INPUT,
      "the experiment's folder '%s' cannot be created (%s): use a --save-dir that you may write to", path,
      strerror(errno));
}

fsdp_status fsdp_train_open_log(const fsdp_options *options, bool fresh, fsdp_metrics_log **log,
                                fsdp_error *error) {
  *log = NULL;
  if (options->log) return fsdp_metrics_log_open(options->log, fresh, log, error);
  if (!options->experiment) return FSDP_OK;
  char path[PATH_BYTES];
  fsdp_status status = fsdp_train_make_folder(options, path, sizeof path, error);
  if (status != FSDP_OK) return status;
  strcat(path, "/log.jsonl");
  return fsdp_metrics_log_open(path, fresh, log, error);
}
