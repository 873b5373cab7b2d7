#include "launcher/text/sample.h"

#include "launcher/setup/tokenizer.h"
#include "models/model.h"
#include "runtime/base/check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool needs_codec(const fsdp_options *options) {
  char path[4096];
  if (!options->prompt) return false;
  if (options->tokenizer) return strcmp(options->tokenizer, "bytes") != 0;
  int length = snprintf(path, sizeof path, "%s/tokenizer.json", options->model);
  return length < (int)sizeof path && access(path, F_OK) == 0;
}

static bool is_first(void) {
  static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};
  for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
    if (getenv(ranks[i])) return atoi(getenv(ranks[i])) == 0;
  return true;
}

void fsdp_sample_start_codec(const fsdp_options *options, fsdp_text_codec *codec) {
  if (needs_codec(options) && is_first()) fsdp_text_codec_start(codec);
}

// ---- The prompt

static fsdp_status parse_tokens(const fsdp_options *options, fsdp_sample *sample, fsdp_error *error) {
  const char *at = options->prompt_tokens;
  sample->as_tokens = true;
  sample->tokens = fsdp_alloc((strlen(at) + 1) * sizeof *sample->tokens);
  for (char *end;; at = end + 1) {
    long long token = strtoll(at, &end, 10);
    if (end == at || (*end && *end != ',') || token < 0 || token > INT32_MAX)
      return fsdp_fail(error, FSDP_ERR_OPTION,
                       "--prompt-tokens '%.200s' (%s): use numbers with commas between, as 1,2,3",
                       options->prompt_tokens, fsdp_options_place(options, "prompt-tokens"));
    sample->tokens[sample->prompt_count++] = (int32_t)token;
    if (!*end) return FSDP_OK;
  }
}

static fsdp_status encode(const fsdp_options *options, const fsdp_setup *setup, int64_t vocabulary,
                          fsdp_text_codec *codec, fsdp_sample *sample, fsdp_error *error) {
  fsdp_train_tokenizer tokenizer;
  fsdp_status status = fsdp_train_find_tokenizer(options, setup, vocabulary, &tokenizer, error);
  if (status == FSDP_OK && *tokenizer.no_bytes)
    status = fsdp_fail(error, FSDP_ERR_INPUT, "--prompt (%s): %.900s, or give --prompt-tokens",
                       fsdp_options_place(options, "prompt"), tokenizer.no_bytes);
  if (status == FSDP_OK) status = fsdp_text_codec_open(codec, tokenizer.path, error);
  if (status == FSDP_OK)
    status = fsdp_text_encode(codec, options->prompt, &sample->tokens, &sample->prompt_count, error);
  sample->end = codec->opened ? codec->end : -1;
  fsdp_train_tokenizer_destroy(&tokenizer);
  return status;
}

static fsdp_status check_tokens(const fsdp_options *options, const fsdp_sample *sample, int64_t vocabulary,
                                fsdp_error *error) {
  const char *name = options->prompt_tokens ? "prompt-tokens" : "prompt";
  if (sample->prompt_count == 0)
    return fsdp_fail(error, FSDP_ERR_OPTION, "--%s (%s) is empty: give at least one token to continue", name,
                     fsdp_options_place(options, name));
  for (int64_t i = 0; i < sample->prompt_count; i++)
    if (sample->tokens[i] >= vocabulary)
      return fsdp_fail(error, FSDP_ERR_OPTION,
                       "--%s (%s): token %d is not in the model's vocabulary of %" PRId64
                       ": give tokens of this model, or its own --tokenizer",
                       name, fsdp_options_place(options, name), sample->tokens[i], vocabulary);
  return FSDP_OK;
}

// Rank 0's part.
static fsdp_status read_prompt(const fsdp_options *options, fsdp_text_codec *codec, fsdp_sample *sample,
                               fsdp_error *error) {
  fsdp_setup setup = {0};
  fsdp_model_config model;
  fsdp_status status = fsdp_setup_read_model(options, &setup, &model, error);
  if (status != FSDP_OK) return status;
  status = options->prompt_tokens ? parse_tokens(options, sample, error)
                                  : encode(options, &setup, model.vocab_size, codec, sample, error);
  return status == FSDP_OK ? check_tokens(options, sample, model.vocab_size, error) : status;
}

fsdp_status fsdp_sample_create(fsdp_world *world, const fsdp_options *options, fsdp_text_codec *codec,
                               fsdp_sample *sample, fsdp_error *error) {
  *sample = (fsdp_sample){.end = -1, .new_max = options->max_new_tokens};
  if (!options->prompt && !options->prompt_tokens) return FSDP_OK;
  if (world->rank == 0) read_prompt(options, codec, sample, error);
  fsdp_status status = fsdp_world_share_error(world, error);
  if (status != FSDP_OK) return status;
  fsdp_world_broadcast(world, &sample->prompt_count, (int64_t)sizeof sample->prompt_count);
  fsdp_world_broadcast(world, &sample->end, (int64_t)sizeof sample->end);
  const size_t bytes = (size_t)sample->prompt_count * sizeof *sample->tokens;
  sample->tokens = fsdp_realloc(sample->tokens, bytes + (size_t)sample->new_max * sizeof *sample->tokens);
  fsdp_world_broadcast(world, sample->tokens, (int64_t)bytes);
  return FSDP_OK;
}

void fsdp_sample_destroy(fsdp_sample *sample) {
  free(sample->tokens);
  sample->tokens = NULL;
}

fsdp_status fsdp_sample_check(const fsdp_sample *sample, const fsdp_options *options, fsdp_error *error) {
  if (sample->prompt_count == 0 || sample->prompt_count + sample->new_max <= options->seq) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_OPTION,
                   "a prompt of %" PRId64 " tokens and --max-new-tokens %" PRId64 " (%s) are more than "
                   "--seq-length %" PRId64 " (%s): lower --max-new-tokens, or raise --seq-length",
                   sample->prompt_count, sample->new_max, fsdp_options_place(options, "max-new-tokens"),
                   options->seq, fsdp_options_place(options, "seq-length"));
}

// ---- What is printed

static char *print_tokens(const int32_t *tokens, int64_t count) {
  char *text = fsdp_alloc((size_t)count * 13 + 1), *out = text;
  *out = 0;
  for (int64_t i = 0; i < count; i++) out += sprintf(out, "%s%d", i ? ", " : "", tokens[i]);
  return text;
}

fsdp_status fsdp_sample_print(const fsdp_sample *sample, fsdp_text_codec *codec, char **text,
                              fsdp_error *error) {
  if (!sample->as_tokens)
    return fsdp_text_decode(codec, sample->tokens, sample->prompt_count, sample->new_count, text, error);
  *text = print_tokens(sample->tokens + sample->prompt_count, sample->new_count);
  return FSDP_OK;
}

char *fsdp_sample_shown(char *text) {
  for (char *at = text; *at; at++)
    if (((unsigned char)*at < 0x20 && *at != '\n' && *at != '\t') || *at == 0x7f) *at = '?';
  return text;
}
