#include "launcher/train/train_files.h"

#include "launcher/options/run_options.h"
#include "launcher/report/whole_file.h"
#include "runtime/base/check.h"
#include "runtime/base/folders.h"
#include "runtime/base/plural.h"
#include "runtime/base/script.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

fsdp_status fsdp_train_make_folder(const fsdp_options *options, fsdp_train_folder *folder,
                                   fsdp_error *error) {
  const int bytes = (int)sizeof folder->path;
  int length = snprintf(folder->path, sizeof folder->path, "%s/%s", options->save_dir, options->experiment);
  if (length < 0 || length >= bytes - 16) {
    return fsdp_fail(error, FSDP_ERR_INPUT, "--save-dir '%.200s...': the path is too long",
                     options->save_dir);
  }
  folder->made_above = access(options->save_dir, F_OK) != 0;
  folder->made = access(folder->path, F_OK) != 0;
  if (fsdp_make_folders(folder->path)) return FSDP_OK;
  return fsdp_fail(
      error, FSDP_ERR_INPUT,
      "the experiment's folder '%s' cannot be created (%s): use a --save-dir that you may write to",
      folder->path, strerror(errno));
}

void fsdp_train_leave_folder(const fsdp_options *options, const fsdp_train_folder *folder) {
  if (folder->made && rmdir(folder->path) == 0 && folder->made_above) rmdir(options->save_dir);
}

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
  return *path ? fsdp_metrics_log_open(path, log, error) : FSDP_OK;
}

fsdp_status fsdp_train_write_options(const fsdp_options *options, int ranks, fsdp_error *error) {
  char path[FSDP_TRAIN_PATH_BYTES], host[65] = "";
  fsdp_whole_file file;
  if (!options->experiment) return FSDP_OK;
  fsdp_run_options_path(options, path, sizeof path);
  fsdp_status status = fsdp_whole_file_open("save-dir", path, &file, error);
  if (status != FSDP_OK) return status;
  gethostname(host, sizeof host - 1);
  fprintf(file.out,
          "# fsdp_train " FSDP_VERSION " started this run on %d rank%s, the first on %s. The next -e %s\n"
          "# takes from here what it is not given.\n",
          ranks, fsdp_plural(ranks), host, options->experiment);
  fprintf(file.out, "ranks: %d\n", ranks);
  fputs(options->run_config, file.out);
  return fsdp_whole_file_close(&file, error);
}

// FOLDER/NAME if that exists, else NULL. The caller frees it.
static char *find_in(const char *folder, const char *name) {
  size_t bytes = strlen(folder) + strlen(name) + 2;
  char *path = fsdp_alloc(bytes);
  snprintf(path, bytes, "%s/%s", folder, name);
  if (access(path, F_OK) == 0) return path;
  free(path);
  return NULL;
}

static fsdp_status find_named(const fsdp_options *options, fsdp_train_tokenizer *tokenizer,
                              fsdp_error *error) {
  tokenizer->asked_bytes = strcmp(options->tokenizer, "bytes") == 0;
  if (tokenizer->asked_bytes) return FSDP_OK;
  if (access(options->tokenizer, R_OK) != 0) {
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "--tokenizer '%s' (%s) cannot be read (%s): name a tokenizer.json, or bytes",
                     options->tokenizer, fsdp_options_place(options, "tokenizer"), strerror(errno));
  }
  tokenizer->path = strdup(options->tokenizer);
  FSDP_NEED_MEMORY(tokenizer->path, "a text");
  return FSDP_OK;
}

static bool has(const char *folder, const char *name) {
  char *path = find_in(folder, name);
  free(path);
  return path != NULL;
}

// Whether bytes may be the tokens of a model that names no tokenizer.
static void judge_bytes(const fsdp_options *options, const fsdp_setup *setup, int64_t vocab_size,
                        fsdp_train_tokenizer *tokenizer) {
  if (!setup->load_weights && vocab_size == 256) return;
  if (!setup->folder && !options->data && !options->eval_data) {
    tokenizer->notes_bytes = true;
    return;
  }
  char why[64] = "weights";
  if (!setup->load_weights) snprintf(why, sizeof why, "a vocabulary of %lld", (long long)vocab_size);
  if (setup->folder && has(setup->folder, "vocab.json") && has(setup->folder, "merges.txt")) {
    snprintf(tokenizer->no_bytes, sizeof tokenizer->no_bytes,
             "the model %.250s has a tokenizer, vocab.json and merges.txt; prepare the data with "
             "%.250s --model %.250s, which also makes tokenizer.json of them, or use --tokenizer bytes",
             setup->folder, FSDP_PREPARE_DATA, setup->folder);
  } else if (setup->folder) {
    snprintf(tokenizer->no_bytes, sizeof tokenizer->no_bytes,
             "the model %.300s has %s and no tokenizer.json; if its download is not complete, add that file; "
             "else name one with --tokenizer FILE, or use --tokenizer bytes",
             setup->folder, why);
  } else {
    snprintf(tokenizer->no_bytes, sizeof tokenizer->no_bytes,
             "the preset %s has %s; prepare the data with %.300s --tokenizer FILE, or use --tokenizer bytes",
             setup->model_name, why, FSDP_PREPARE_DATA);
  }
}

fsdp_status fsdp_train_find_tokenizer(const fsdp_options *options, const fsdp_setup *setup,
                                      int64_t vocab_size, fsdp_train_tokenizer *tokenizer,
                                      fsdp_error *error) {
  *tokenizer = (fsdp_train_tokenizer){0};
  if (options->tokenizer) return find_named(options, tokenizer, error);
  if (setup->folder) tokenizer->path = find_in(setup->folder, "tokenizer.json");
  if (tokenizer->path) return FSDP_OK;
  char *other = setup->folder ? find_in(setup->folder, "tokenizer.model") : NULL;
  if (!other) {
    judge_bytes(options, setup, vocab_size, tokenizer);
    return FSDP_OK;
  }
  fsdp_status status = fsdp_fail(
      error, FSDP_ERR_INPUT,
      "%s: the model has a tokenizer in another form than tokenizer.json, with which its text must be "
      "prepared; save it as tokenizer.json (Transformers' save_pretrained does) and name that with "
      "--tokenizer",
      other);
  free(other);
  return status;
}

void fsdp_train_tokenizer_destroy(fsdp_train_tokenizer *tokenizer) {
  free(tokenizer->path);
  tokenizer->path = NULL;
}
