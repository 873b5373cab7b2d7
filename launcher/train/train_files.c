#include "launcher/train/train_files.h"

#include "launcher/options/run_options.h"
#include "launcher/report/whole_file.h"
#include "runtime/base/check.h"
#include "runtime/base/text.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void fsdp_train_log_path(const fsdp_options *options, char path[FSDP_TRAIN_PATH_BYTES]) {
  *path = 0;
  if (options->log)
    snprintf(path, FSDP_TRAIN_PATH_BYTES, "%s", options->log);
  else if (options->experiment)
    snprintf(path, FSDP_TRAIN_PATH_BYTES, "%s/%s/log.jsonl", options->save_dir, options->experiment);
}

fsdp_status fsdp_train_log_open(const fsdp_options *options, fsdp_train_log *self, fsdp_error *error) {
  char path[FSDP_TRAIN_PATH_BYTES];
  fsdp_train_log_path(options, path);
  // An experiment's own is a log whatever a crash has made of it.
  if (options->log && fsdp_metrics_log_is_other(path, FSDP_TRAIN_LOG_STEP))
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "--log %s (%s): is a file, but no log: none of its lines has a step; name a different "
                     "file, or remove it",
                     path, fsdp_options_place(options, "log"));
  fsdp_status status = *path ? fsdp_metrics_log_open(path, &self->log, error) : FSDP_OK;
  if (status == FSDP_OK && options->tensorboard)
    status = fsdp_event_file_open(options->tensorboard, &self->events, error);
  return status;
}

static void warn_once(bool *warned, const fsdp_error *error, const char *consequence) {
  if (*warned) return;
  *warned = true;
  fprintf(stderr, "fsdp_train: warning: %s; training continues, %s\n", error->message, consequence);
}

// The numbers of the step's JSON line.
static fsdp_status write_event(fsdp_event_file *events, int64_t step, json_t *line, fsdp_error *error) {
  fsdp_event_scalar *scalars = fsdp_alloc(json_object_size(line) * sizeof *scalars);
  json_t *value;
  const char *key;
  int count = 0;
  json_object_foreach(line, key, value) {
    if (!json_is_number(value) || strcmp(key, FSDP_TRAIN_LOG_STEP) == 0) continue;
    scalars[count++] = (fsdp_event_scalar){.tag = key, .value = json_number_value(value)};
  }
  fsdp_status status = fsdp_event_file_write(events, step, scalars, count, error);
  free(scalars);
  return status;
}

void fsdp_train_log_write(fsdp_train_log *self, const fsdp_step_record *record, const fsdp_plan *plan) {
  if (!self->log && !self->events) return;
  fsdp_error error;
  json_t *line = fsdp_progress_json(record, plan);
  if (self->log && fsdp_metrics_log_write(self->log, line, &error) != FSDP_OK) {
    warn_once(&self->warned_of_log, &error, "the missing lines are written once there is room");
  }
  if (self->events && write_event(self->events, record->step, line, &error) != FSDP_OK) {
    warn_once(&self->warned_of_events, &error, "without its steps until there is room");
  }
  json_decref(line);
}

void fsdp_train_log_close(fsdp_train_log *self) {
  fsdp_error error;
  if (fsdp_metrics_log_close(self->log, &error) != FSDP_OK) {
    fprintf(stderr, "fsdp_train: warning: %s\n", error.message);
  }
  fsdp_event_file_close(self->events);
  *self = (fsdp_train_log){0};
}

// ---- run.yaml

// What runs that were killed while they wrote run.yaml left: this one holds the folder's lock.
static void remove_unfinished_options(const fsdp_options *options) {
  char folder[FSDP_TRAIN_PATH_BYTES], path[FSDP_TRAIN_PATH_BYTES + sizeof((struct dirent *)0)->d_name];
  snprintf(folder, sizeof folder, "%s/%s", options->save_dir, options->experiment);
  DIR *listing = opendir(folder);
  for (struct dirent *entry; listing && (entry = readdir(listing));) {
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    if (fnmatch("run.yaml.*.tmp", entry->d_name, 0) == 0) unlink(path);
  }
  if (listing) closedir(listing);
}

fsdp_status fsdp_train_write_options(const fsdp_options *options, int ranks, const char *from,
                                     fsdp_error *error) {
  char path[FSDP_TRAIN_PATH_BYTES], host[65] = "";
  fsdp_whole_file file;
  if (!options->experiment) return FSDP_OK;
  remove_unfinished_options(options);
  fsdp_run_options_path(options, path, sizeof path);
  fsdp_status status = fsdp_whole_file_open("save-dir", path, &file, error);
  if (status != FSDP_OK) return status;
  gethostname(host, sizeof host - 1);
  fprintf(file.out,
          "# fsdp_train " FSDP_VERSION " started this run on %d rank%s, the first on %s. The next -e %s\n"
          "# takes from here what it is not given.\n",
          ranks, fsdp_plural(ranks), host, options->experiment);
  fprintf(file.out, "ranks: %d\n", ranks);
  if (from) fsdp_run_options_print_start(options, from, file.out);
  fputs(options->run_config, file.out);
  return fsdp_whole_file_close(&file, error);
}
