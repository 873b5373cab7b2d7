#include "launcher/train/train_files.h"

#include "launcher/options/run_options.h"
#include "launcher/report/whole_file.h"
#include "runtime/base/text.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void fsdp_train_log_path(const fsdp_options *options, char path[FSDP_TRAIN_PATH_BYTES]) {
  *path = 0;
  if (options->log)
    snprintf(path, FSDP_TRAIN_PATH_BYTES, "%s", options->log);
  else if (options->experiment)
    snprintf(path, FSDP_TRAIN_PATH_BYTES, "%s/%s/log.jsonl", options->save_dir, options->experiment);
}

fsdp_status fsdp_train_open_log(const fsdp_options *options, fsdp_metrics_log **log, fsdp_error *error) {
  char path[FSDP_TRAIN_PATH_BYTES];
  *log = NULL;
  fsdp_train_log_path(options, path);
  // An experiment's own is a log whatever a crash has made of it.
  if (options->log && fsdp_metrics_log_is_other(path, FSDP_TRAIN_LOG_STEP))
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "--log %s (%s): is a file, but no log: none of its lines has a step; name a different "
                     "file, or remove it",
                     path, fsdp_options_place(options, "log"));
  return *path ? fsdp_metrics_log_open(path, log, error) : FSDP_OK;
}

// What runs that were killed while they wrote run.yaml left: this one holds the folder's lock.
static void remove_unfinished_options(const fsdp_options *options) {
  static const char begin[] = "run.yaml.", end[] = ".tmp";
  char folder[FSDP_TRAIN_PATH_BYTES], path[FSDP_TRAIN_PATH_BYTES + sizeof((struct dirent *)0)->d_name];
  snprintf(folder, sizeof folder, "%s/%s", options->save_dir, options->experiment);
  DIR *listing = opendir(folder);
  for (struct dirent *entry; listing && (entry = readdir(listing));) {
    size_t length = strlen(entry->d_name);
    if (length < sizeof begin + sizeof end - 2 || strncmp(entry->d_name, begin, sizeof begin - 1) != 0)
      continue;
    if (strcmp(entry->d_name + length - (sizeof end - 1), end) != 0) continue;
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    unlink(path);
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
