#include "launcher/text/sample.h"

#include "launcher/setup/tokenizer.h"
#include "runtime/base/check.h"
#include "runtime/base/paths.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/checkpoint/json_file.h"
#include "runtime/data/data_paths.h"
#include "runtime/data/token_source.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool needs_codec(const fsdp_options *options) {
  if (!options->prompt) return false;
  if (strcmp(options->chat_template, "plain") != 0) return true;
  if (options->tokenizer) return strcmp(options->tokenizer, "bytes") != 0;
  return fsdp_has_file(options->model, "tokenizer.json");
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
      return fsdp_refuse(options, error, FSDP_ERR_OPTION,
                         "{Q prompt-tokens}: use numbers with commas between, as 1,2,3");
    sample->tokens[sample->prompt_count++] = (int32_t)token;
    if (!*end) return FSDP_OK;
  }
}

// What the first file of --data that tells it has: the chat template that it was prepared with, if one was
// given then, and what its texts begin and end with. What is wrong with the data is said where it is opened.
typedef struct data_form {
  char *chat_template; // NULL: none
  int64_t chat_template_bytes;
  fsdp_token_ends ends;
} data_form;

static data_form read_form(const char *data) {
  fsdp_data_paths paths;
  fsdp_error ignored;
  data_form form = {0};
  fsdp_status status = fsdp_data_paths_find("data", data, &paths, &ignored);
  for (int i = 0; i < paths.count && status == FSDP_OK; i++) {
    const char *dot = strrchr(paths.files[i], '.');
    fsdp_token_file file = {0};
    if (dot && strcasecmp(dot, ".tok") == 0 &&
        fsdp_token_file_open(paths.files[i], &file, &ignored) != FSDP_OK)
      continue;
    if (!form.ends.known) form.ends = fsdp_token_ends_of(paths.files[i], &file);
    if (file.chat_template && !form.chat_template) {
      form.chat_template_bytes = file.chat_template_bytes;
      form.chat_template = memcpy(fsdp_alloc((size_t)form.chat_template_bytes), file.chat_template,
                                  (size_t)form.chat_template_bytes);
    }
    fsdp_token_file_close(&file);
  }
  fsdp_data_paths_destroy(&paths);
  return form;
}

// What the data of the checkpoint's run had.
static data_form saved_form(const fsdp_options *options) {
  data_form form = {0};
  fsdp_checkpoint *c;
  fsdp_error ignored;
  if (fsdp_checkpoint_read_manifest(options->resume, &c, &ignored) != FSDP_OK) return form;
  form.ends = (fsdp_token_ends){c->progress.knows_ends, c->progress.first_token, c->progress.last_token};
  fsdp_checkpoint_destroy(c);
  return form;
}

// The model's folder; of a checkpoint the one in it, whose chat template is the data's.
static const char *folder_of_model(const fsdp_options *options, const fsdp_setup *setup, char path[4096]) {
  if (!options->evaluated) return setup->folder;
  snprintf(path, 4096, "%.4000s/" FSDP_CHECKPOINT_CARRIED, options->resume);
  return path;
}

// What is evaluated has its own, whatever the data of the evaluation.
static data_form form_of(const fsdp_options *options) {
  if (options->evaluated) return saved_form(options);
  const bool trains = fsdp_options_given(options, "sample-every");
  return trains && options->data ? read_form(options->data) : (data_form){0};
}

static fsdp_status open_codec(const fsdp_options *options, const fsdp_setup *setup,
                              const fsdp_train_tokenizer *tokenizer, fsdp_text_codec *codec,
                              fsdp_error *error) {
  char path[4096];
  const data_form data = form_of(options);
  const int64_t separator = options->document_separator >= 0 ? options->document_separator : FSDP_TEXT_OWN;
  const fsdp_text_form form = {.tokenizer = *tokenizer->path ? tokenizer->path : NULL,
                               .chat_template = options->chat_template,
                               .known = data.chat_template,
                               .known_bytes = data.chat_template_bytes,
                               .folder = folder_of_model(options, setup, path),
                               .first = data.ends.known ? data.ends.first : FSDP_TEXT_OWN,
                               .last = data.ends.known ? data.ends.last : separator};
  fsdp_status status = fsdp_text_codec_open(codec, &form, error);
  free(data.chat_template);
  return status;
}

static fsdp_status encode(const fsdp_options *options, const fsdp_setup *setup, int64_t vocabulary,
                          fsdp_text_codec *codec, fsdp_sample *sample, fsdp_error *error) {
  fsdp_train_tokenizer tokenizer;
  fsdp_status status = fsdp_train_find_tokenizer(options, setup, vocabulary, &tokenizer, error);
  if (status == FSDP_OK && *tokenizer.no_bytes)
    status = fsdp_refuse(options, error, FSDP_ERR_INPUT, "{a prompt}: %.900s, or give --prompt-tokens",
                         tokenizer.no_bytes);
  if (status == FSDP_OK) status = open_codec(options, setup, &tokenizer, codec, error);
  if (status == FSDP_OK)
    status = fsdp_text_encode(codec, options->prompt, &sample->tokens, &sample->prompt_count, error);
  return status;
}

// ---- Where tokens end

// Each eos_token_id of a file of the model, which is a number, a list or null.
static fsdp_status add_ends_of(const char *path, fsdp_text_codec *codec, fsdp_error *error) {
  const fsdp_json_file file = {.path = path, .missing = "correct it", .damaged = "correct it"};
  json_t *root, *value;
  size_t i;
  fsdp_status status = fsdp_json_file_read(&file, &root, error);
  if (status != FSDP_OK) return status;
  const json_t *ends = json_object_get(root, "eos_token_id");
  if (json_is_integer(ends)) fsdp_text_add_end(codec, json_integer_value(ends));
  json_array_foreach(ends, i, value) {
    if (json_is_integer(value)) fsdp_text_add_end(codec, json_integer_value(value));
  }
  json_decref(root);
  return FSDP_OK;
}

// What ends a text of the data, and what Transformers' generate stops at: generation_config.json alone tells
// it where there is one, else config.json.
static fsdp_status find_ends(const fsdp_options *options, const fsdp_setup *setup, fsdp_text_codec *codec,
                             fsdp_error *error) {
  static const char *const names[] = {"generation_config.json", "config.json"};
  char room[4096], path[4200];
  const data_form data = form_of(options);
  free(data.chat_template);
  const int64_t last = data.ends.known ? data.ends.last : options->document_separator;
  const char *folder = folder_of_model(options, setup, room);
  if (last >= 0) fsdp_text_add_end(codec, last);
  for (int i = 0; folder && i < 2; i++) {
    if (!fsdp_has_file(folder, names[i])) continue;
    snprintf(path, sizeof path, "%s/%s", folder, names[i]);
    return add_ends_of(path, codec, error);
  }
  return FSDP_OK;
}

static fsdp_status check_tokens(const fsdp_options *options, const fsdp_sample *sample, int64_t vocabulary,
                                fsdp_error *error) {
  const char *name = options->prompt_tokens ? "prompt-tokens" : "prompt";
  if (sample->prompt_count == 0)
    return fsdp_refuse(options, error, FSDP_ERR_OPTION,
                       "{a %s} is empty: give at least one token to continue", name);
  for (int64_t i = 0; i < sample->prompt_count; i++)
    if (sample->tokens[i] >= vocabulary)
      return fsdp_refuse(options, error, FSDP_ERR_OPTION,
                         "{a %s}: token %d is not in the model's vocabulary of %" PRId64
                         ": give tokens of this model, or its own --tokenizer",
                         name, sample->tokens[i], vocabulary);
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
  if (status == FSDP_OK && sample->as_tokens) status = find_ends(options, &setup, codec, error);
  return status == FSDP_OK ? check_tokens(options, sample, model.vocab_size, error) : status;
}

fsdp_status fsdp_sample_create(fsdp_world *world, const fsdp_options *options, fsdp_text_codec *codec,
                               fsdp_sample *sample, fsdp_error *error) {
  *sample = (fsdp_sample){.new_max = options->max_new_tokens};
  if (!options->prompt && !options->prompt_tokens) return FSDP_OK;
  if (world->rank == 0) read_prompt(options, codec, sample, error);
  fsdp_status status = fsdp_world_share_error(world, error);
  if (status != FSDP_OK) return status;
  fsdp_world_broadcast(world, &sample->prompt_count, (int64_t)sizeof sample->prompt_count);
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
  return fsdp_refuse(options, error, FSDP_ERR_OPTION,
                     "a prompt of %" PRId64 " tokens and {A max-new-tokens} are more than {A seq-length}: "
                     "lower --max-new-tokens, or raise --seq-length",
                     sample->prompt_count);
}

// ---- What is printed

static char *print_tokens(const int32_t *tokens, int64_t count) {
  char *text = fsdp_alloc((size_t)count * 13 + 1), *out = text;
  *out = 0;
  for (int64_t i = 0; i < count; i++) out += sprintf(out, "%s%d", i ? ", " : "", tokens[i]);
  return text;
}

bool fsdp_sample_add(fsdp_sample *sample, fsdp_text_codec *codec, int32_t token) {
  char *text;
  fsdp_error ignored; // what fails here fails again where it is printed
  sample->end = token;
  if (fsdp_text_ends_with(codec, token)) return true;
  sample->tokens[sample->prompt_count + sample->new_count++] = token;
  if (sample->as_tokens || codec->end_text_count == 0) return false;
  if (fsdp_text_decode(codec, sample->tokens, sample->prompt_count, sample->new_count, &text, &ignored))
    return true;
  const bool ends = fsdp_text_find_end(codec, text) != NULL;
  free(text);
  return ends;
}

fsdp_status fsdp_sample_print(const fsdp_sample *sample, fsdp_text_codec *codec, char **text,
                              fsdp_error *error) {
  if (sample->as_tokens) {
    *text = print_tokens(sample->tokens + sample->prompt_count, sample->new_count);
    return FSDP_OK;
  }
  fsdp_status status =
      fsdp_text_decode(codec, sample->tokens, sample->prompt_count, sample->new_count, text, error);
  char *end = status == FSDP_OK ? fsdp_text_find_end(codec, *text) : NULL;
  if (end) *end = 0;
  return status;
}

const char *fsdp_sample_ending(const fsdp_sample *sample, char out[FSDP_SAMPLE_ENDING_BYTES]) {
  *out = 0;
  if (sample->new_count == 0)
    snprintf(out, FSDP_SAMPLE_ENDING_BYTES, " (token %d, which ends a text, came first)", sample->end);
  return out;
}

const char *fsdp_sample_note(const fsdp_sample *sample, const fsdp_options *options,
                             const fsdp_text_codec *codec) {
  if (sample->as_tokens && codec->end_count == 0)
    return "no file of the model or data says which token ends a text, so what follows --prompt-tokens has "
           "--max-new-tokens tokens";
  if (!codec->could_chat || fsdp_options_given(options, "chat-template")) return NULL;
  return "--prompt is continued as it is; with --chat-template auto it is a user's message, by the chat "
         "template that the model has";
}

char *fsdp_sample_shown(char *text) {
  for (char *at = text; *at; at++)
    if (((unsigned char)*at < 0x20 && *at != '\n' && *at != '\t') || *at == 0x7f) *at = '?';
  return text;
}
