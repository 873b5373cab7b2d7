#include "launcher/setup/tokenizer.h"

#include "runtime/base/check.h"
#include "runtime/base/paths.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
             options->model, why, FSDP_PREPARE_DATA);
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
