#include "launcher/train_files.h"

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

fsdp_status fsdp_train_open_log(const fsdp_options *options, fsdp_metrics_log **log, fsdp_error *error) {
  *log = NULL;
  if (options->log) return fsdp_metrics_log_open(options->log, true, log, error);
  if (!options->experiment) return FSDP_OK;
  char path[PATH_BYTES];
  int length = snprintf(path, sizeof path, "%s/%s", options->save_dir, options->experiment);
  if (length < 0 || length >= (int)sizeof path - 16) {
    return fsdp_fail(error, FSDP_ERR_INPUT, "--save-dir '%.200s...': the path is too long",
                     options->save_dir);
  }
  if (!make_folders(path)) {
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "the experiment's folder '%s' cannot be made (%s): use a --save-dir that is yours", path,
                     strerror(errno));
  }
  snprintf(path + length, sizeof path - (size_t)length, "/log.jsonl");
  return fsdp_metrics_log_open(path, true, log, error);
}

fsdp_status fsdp_train_check_tokenizer(const fsdp_setup *setup, fsdp_error *error) {
  static const char *const names[] = {"tokenizer.json", "tokenizer.model"};
  for (size_t i = 0; setup->folder && i < sizeof names / sizeof *names; i++) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", setup->folder, names[i]);
    if (access(path, F_OK) != 0) continue;
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "%s: this model has a tokenizer, so its text must be prepared with it, which is not built yet; use a "
        "model folder without one to train on bytes",
        path);
  }
  return FSDP_OK;
}
