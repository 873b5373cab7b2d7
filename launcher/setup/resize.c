#include "launcher/setup/resize.h"

#include "runtime/base/size.h"
#include "runtime/checkpoint/json_file.h"
#include "runtime/plan/text/value.h"

#include <stdio.h>
#include <string.h>

static const char option[] = "resize-embeddings";

// One more than the greatest token of a tokenizer.json: its model's vocabulary is an object of ids by token,
// or (Unigram) a list; tokens that were added have their ids.
static int64_t tokenizer_size(const json_t *root) {
  const json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab"), *token;
  int64_t size = json_is_array(vocab) ? (int64_t)json_array_size(vocab) : 0;
  const char *name;
  size_t i;
  json_object_foreach((json_t *)vocab, name, token) size = fsdp_max_i64(size, json_integer_value(token) + 1);
  json_array_foreach(json_object_get(root, "added_tokens"), i, token) size =
      fsdp_max_i64(size, json_integer_value(json_object_get(token, "id")) + 1);
  return size;
}

static fsdp_status read_tokenizer(const fsdp_options *options, const char *folder, int64_t *size,
                                  fsdp_error *error) {
  const bool named = options->tokenizer && strcmp(options->tokenizer, "bytes") != 0;
  char path[4096];
  if (!named && (!folder || options->tokenizer))
    return fsdp_fail(
        error, FSDP_ERR_OPTION,
        "--%s (%s): there is no tokenizer whose tokens could be counted: give their number, as in "
        "--%s 32001, or --tokenizer FILE",
        option, fsdp_options_place(options, option), option);
  snprintf(path, sizeof path, "%.4000s%s", named ? options->tokenizer : folder,
           named ? "" : "/tokenizer.json");
  const fsdp_json_file file = {.path = path,
                               .missing = "--resize-embeddings N gives the number of tokens itself",
                               .damaged = "--resize-embeddings N gives the number of tokens itself"};
  json_t *root;
  fsdp_status status = fsdp_json_file_read(&file, &root, error);
  if (status) return status;
  *size = tokenizer_size(root);
  json_decref(root);
  if (*size > 0 && *size <= INT32_MAX) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "%s: its tokens cannot be counted (no model.vocab): give their number with --%s N", path,
                   option);
}

fsdp_status fsdp_resize_embeddings(const fsdp_options *options, const char *folder, fsdp_model_config *model,
                                   int64_t *stored_vocab, fsdp_error *error) {
  const char *text = options->resize_embeddings;
  int64_t size = 0;
  *stored_vocab = 0;
  if (!text) return FSDP_OK;
  const bool counted = strcmp(text, "tokenizer") == 0;
  if (counted) {
    fsdp_status status = read_tokenizer(options, folder, &size, error);
    if (status || size <= model->vocab_size) return status;
  } else if (!fsdp_value_int(text, &size) || size < 1 || size > INT32_MAX) {
    return fsdp_fail(error, FSDP_ERR_OPTION, "--%s '%.60s' (%s): use tokenizer, or a number of tokens",
                     option, text, fsdp_options_place(options, option));
  } else if (size < model->vocab_size) {
    return fsdp_fail(
        error, FSDP_ERR_OPTION,
        "--%s %lld (%s): the model has %lld tokens, and none is taken from it: use at least that", option,
        (long long)size, fsdp_options_place(options, option), (long long)model->vocab_size);
  }
  if (size > model->vocab_size) *stored_vocab = model->vocab_size;
  model->vocab_size = size;
  return FSDP_OK;
}
