#include "launcher/setup/tokenizer.h"

#include "runtime/base/descriptors.h"
#include "runtime/base/paths.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static fsdp_status find_named(const fsdp_options *options, fsdp_train_tokenizer *tokenizer,
                              fsdp_error *error) {
  tokenizer->asked_bytes = strcmp(options->tokenizer, "bytes") == 0;
  if (tokenizer->asked_bytes) return FSDP_OK;
  if (access(options->tokenizer, R_OK) != 0)
    return fsdp_refuse(options, error, FSDP_ERR_INPUT, "{Q tokenizer} cannot be read (%s): %s",
                       strerror(errno), fsdp_read_remedy(errno, "name a tokenizer.json, or bytes"));
  snprintf(tokenizer->path, sizeof tokenizer->path, "%s", options->tokenizer);
  return FSDP_OK;
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
  if (setup->folder && fsdp_has_file(setup->folder, "vocab.json") &&
      fsdp_has_file(setup->folder, "merges.txt")) {
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
  if (setup->folder && fsdp_has_file(setup->folder, "tokenizer.json")) {
    snprintf(tokenizer->path, sizeof tokenizer->path, "%s/tokenizer.json", setup->folder);
    return FSDP_OK;
  }
  if (setup->folder && fsdp_has_file(setup->folder, "tokenizer.model"))
    return fsdp_fail(
        error, FSDP_ERR_INPUT,
        "%s/tokenizer.model: the model has a tokenizer in another form than tokenizer.json, with which its "
        "text must be "
        "prepared; save it as tokenizer.json (Transformers' save_pretrained does) and name that with "
        "--tokenizer",
        setup->folder);
  judge_bytes(options, setup, vocab_size, tokenizer);
  return FSDP_OK;
}
