// Evaluates a model or a checkpoint over the ranks that mpirun started, and continues a text with it.
#include "launcher/options/run_options.h"
#include "launcher/programs/rank_program.h"
#include "runtime/base/check.h"
#include "runtime/base/paths.h"
#include "runtime/checkpoint/checkpoint_folder.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- What is evaluated

// The checkpoint that the path `folder` means (fsdp_checkpoint_at); `experiment` is the folder of
// -e, for a message.
static fsdp_status find_checkpoint(const fsdp_options *options, const char *folder, const char *experiment,
                                   char path[FSDP_CHECKPOINT_PATH_BYTES], fsdp_error *error) {
  if (fsdp_checkpoint_at(folder, path)) return FSDP_OK;
  char names[FSDP_CHECKPOINT_NAMES_BYTES], question[FSDP_NEAREST_TEXT] = "";
  if (access(experiment, F_OK) != 0) fsdp_run_options_near(options, question);
  return fsdp_fail(
      error, FSDP_ERR_INPUT,
      "%.600s: there is no checkpoint to evaluate (%.600s%s)%s; name one with --resume step-N or best, an "
      "experiment that has one with -e NAME and --save-dir DIR, or a model's folder with --model",
      folder, experiment, fsdp_checkpoint_print_names(experiment, names), question);
}

static fsdp_status set(fsdp_options *options, const char *name, const char *value, fsdp_error *error) {
  if (!value || !*value || fsdp_options_given(options, name)) return FSDP_OK;
  return fsdp_options_set(options, FSDP_PROGRAM_EVAL, name, value, "the checkpoint", error);
}

static const char *saved(const fsdp_checkpoint *c, const char *name) {
  return json_string_value(json_object_get(c->options, name));
}

// The model that the checkpoint carries along; of a preset, its name.
static fsdp_status set_model(fsdp_options *options, const fsdp_checkpoint *c, const char *path,
                             fsdp_error *error) {
  char model[FSDP_CHECKPOINT_PATH_BYTES + 32];
  snprintf(model, sizeof model, "%s/" FSDP_CHECKPOINT_CARRIED, path);
  return set(options, "model", fsdp_has_file(model, "config.json") ? model : saved(c, "model"), error);
}

// --tokenizer of the run, which the checkpoint carries along; of older ones where it was, for they carry the
// model folder's.
static fsdp_status set_tokenizer(fsdp_options *options, const fsdp_checkpoint *c, const char *path,
                                 fsdp_error *error) {
  char carried[FSDP_CHECKPOINT_PATH_BYTES + 32];
  if (!c->carries_tokenizer) return set(options, "tokenizer", saved(c, "tokenizer"), error);
  snprintf(carried, sizeof carried, "%s/" FSDP_CHECKPOINT_CARRIED "/tokenizer.json", path);
  return set(options, "tokenizer", carried, error);
}

// The vocabulary of a run with --resize-embeddings: the model's files that it carries along are as they came.
static fsdp_status set_vocab(fsdp_options *options, const fsdp_checkpoint *c, fsdp_error *error) {
  char tokens[24];
  if (!saved(c, "resize-embeddings")) return FSDP_OK;
  snprintf(tokens, sizeof tokens, "%" PRId64, c->model.vocab_size);
  return set(options, "resize-embeddings", tokens, error);
}

// The run's sequence length, dtypes, packing of documents and mean of the loss. Its mask is left out where
// the data decides: on is the default for data with documents, and off says nothing of data without.
static fsdp_status set_others(fsdp_options *options, const fsdp_checkpoint *c, fsdp_error *error) {
  static const struct {
    const char *name, *but; // a value that says nothing
  } rows[] = {{"document-mask", "on"},    {"document-separator", "-1"}, {"packing", "auto"},
              {"seq-length", ""},         {"long-documents", "split"},  {"loss-mean", "tokens"},
              {"param-dtype", "default"}, {"router-dtype", "model"}};
  fsdp_status status = FSDP_OK;
  for (size_t i = 0; i < sizeof rows / sizeof *rows && status == FSDP_OK; i++) {
    const char *value = saved(c, rows[i].name);
    if (i == 0 && c->progress.document_mask == FSDP_GIVEN_NO) continue;
    if (value && strcmp(value, rows[i].but) != 0) status = set(options, rows[i].name, value, error);
  }
  return status;
}

// The newest checkpoint of -e, or the one that --resume names. Sets of the options those that it answers and
// that are not given: its model, vocabulary and tokenizer, the length of its sequences, its dtypes. --resume
// becomes the checkpoint's path, and `evaluated` the name of its model with that path. Nothing without -e.
static fsdp_status find_evaluated(fsdp_options *options, fsdp_error *error) {
  char experiment[FSDP_CHECKPOINT_PATH_BYTES], folder[FSDP_CHECKPOINT_PATH_BYTES];
  char path[FSDP_CHECKPOINT_PATH_BYTES];
  fsdp_checkpoint *c;
  if (!options->experiment) return FSDP_OK;
  const bool newest = strcmp(options->resume, "auto") == 0;
  if (strcmp(options->resume, "off") == 0)
    return fsdp_refuse(options, error, FSDP_ERR_OPTION,
                       "{A resume} leaves -e no checkpoint: leave one of them out");
  snprintf(experiment, sizeof experiment, "%s/%s", options->save_dir, options->experiment);
  const bool named = !newest && fsdp_checkpoint_named(experiment, options->resume, path);
  snprintf(folder, sizeof folder, "%s", newest ? experiment : named ? path : options->resume);
  fsdp_status status = find_checkpoint(options, folder, experiment, path, error);
  if (status == FSDP_OK) status = fsdp_checkpoint_read_manifest(path, &c, error);
  if (status != FSDP_OK) return status;
  const int length = asprintf(&options->evaluated, "%s of %s", c->model_name, path);
  FSDP_NEED_MEMORY(length >= 0, "a name");
  status = set_model(options, c, path, error);
  if (status == FSDP_OK) status = set_vocab(options, c, error);
  if (status == FSDP_OK) status = set_tokenizer(options, c, path, error);
  if (status == FSDP_OK) status = set_others(options, c, error);
  fsdp_checkpoint_destroy(c);
  if (status == FSDP_OK)
    status = fsdp_options_set(options, FSDP_PROGRAM_EVAL, "resume", path,
                              newest ? "the newest of -e" : fsdp_options_place(options, "resume"), error);
  return status;
}

// ---- The program

static fsdp_status parse(fsdp_options *options, int argc, char **argv, fsdp_error *error) {
  fsdp_status status = fsdp_options_parse(options, FSDP_PROGRAM_EVAL, argc, argv, error);
  if (status != FSDP_OK || options->help || options->version) return status;
  if (!options->data && !options->prompt && !options->prompt_tokens && !options->dry_run)
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "there is nothing to do: give --data FILE to evaluate on, or --prompt TEXT to continue");
  if (!options->experiment && !fsdp_options_given(options, "model"))
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "there is nothing to evaluate: give --model DIR, or -e NAME for an experiment's newest "
                     "checkpoint");
  return find_evaluated(options, error);
}

// Without data the sequence is as long as the text may grow: every token costs a whole one.
static fsdp_status choose_seq(const fsdp_sample *sample, fsdp_options *options, fsdp_error *error) {
  char text[24];
  const bool given = fsdp_options_given(options, "seq-length") && !options->experiment;
  if (sample->prompt_count == 0) return FSDP_OK;
  if (options->data || given) return fsdp_sample_check(sample, options, error);
  snprintf(text, sizeof text, "%" PRId64, sample->prompt_count + sample->new_max);
  return fsdp_options_set(options, FSDP_PROGRAM_EVAL, "seq-length", text, "the prompt and --max-new-tokens",
                          error);
}

static fsdp_status evaluate(const fsdp_train_config *config, fsdp_options *options, fsdp_error *error) {
  const fsdp_status status = choose_seq(config->sample, options, error);
  int stop_signal; // none: it has no steps
  return status ? status : fsdp_train_run(config, &stop_signal, error);
}

int main(int argc, char **argv) {
  static const fsdp_rank_program program = {
      .name = "fsdp_eval", .kind = FSDP_PROGRAM_EVAL, .answers = true, .parse = parse, .run = evaluate};
  return fsdp_rank_program_main(&program, argc, argv);
}
