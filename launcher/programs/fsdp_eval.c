// Evaluates a model or a checkpoint over the ranks that mpirun started, and continues a text with it.
#include "launcher/programs/evaluated.h"
#include "launcher/programs/rank_program.h"

#include <inttypes.h>
#include <stdio.h>

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
  return fsdp_evaluated_find(options, error);
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
  return status ? status : fsdp_train_evaluate(config, error);
}

int main(int argc, char **argv) {
  static const fsdp_rank_program program = {
      .name = "fsdp_eval", .kind = FSDP_PROGRAM_EVAL, .answers = true, .parse = parse, .run = evaluate};
  return fsdp_rank_program_main(&program, argc, argv);
}
