// Evaluates a model or a checkpoint over the ranks that mpirun started, and continues a text with it.
#include "launcher/options/options.h"
#include "launcher/programs/evaluated.h"
#include "launcher/programs/rank_gpu.h"
#include "launcher/report/output.h"
#include "launcher/train/rank_logs.h"
#include "launcher/train/train.h"
#include "runtime/watch/start_timer.h"

#include <inttypes.h>
#include <stdio.h>

#define START_LIMIT_S 300 // if the options, of which one is this limit, are wrong

// --help and --version, once per job.
static bool answered(const fsdp_world *world, const fsdp_options *options) {
  if (!options->help && !options->version) return false;
  if (world->rank > 0) return true;
  if (options->help)
    fsdp_options_print_help(FSDP_PROGRAM_EVAL, (fsdp_help)options->help, stdout);
  else
    printf("fsdp_eval %s\n", FSDP_VERSION);
  return true;
}

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

static fsdp_status evaluate(fsdp_world *world, fsdp_options *options, fsdp_text_codec *codec,
                            fsdp_error *error) {
  fsdp_status status = fsdp_binding_check_tasks(world, error);
  if (status != FSDP_OK || answered(world, options)) return status;
  fsdp_gpu gpu;
  char why_cpu[FSDP_WHY_CPU_BYTES];
  status = fsdp_rank_gpu_choose(world, options, &gpu, why_cpu, error);
  if (status != FSDP_OK) return status;
  fsdp_binding binding;
  fsdp_binding_config place = {.bind = options->bind, .gpu_bus = gpu.present ? gpu.bus : NULL};
  fsdp_binding_bind(world, &place, &binding);
  fsdp_sample sample;
  fsdp_train_config config = {.world = world,
                              .options = options,
                              .binding = &binding,
                              .gpu = &gpu,
                              .why_cpu = why_cpu,
                              .sample = &sample,
                              .codec = codec};
  status = fsdp_sample_create(world, options, codec, &sample, error);
  if (status == FSDP_OK) status = choose_seq(&sample, options, error);
  if (status == FSDP_OK) status = fsdp_train_evaluate(&config, error);
  fsdp_sample_destroy(&sample);
  return status;
}

int main(int argc, char **argv) {
  fsdp_world *world = NULL;
  fsdp_error error = {0}, start_error = {0};
  fsdp_options options;
  fsdp_text_codec codec = {0};
  fsdp_output_begin();
  fsdp_gpu_set_environment();
  // What is wrong with the options is reported when all ranks have joined; their time limit counts from now.
  parse(&options, argc, argv, &error);
  if (error.status == FSDP_OK) fsdp_sample_start_codec(&options, &codec);
  fsdp_start_timer_begin(error.status == FSDP_OK ? (int)options.comm_timeout : START_LIMIT_S);
  fsdp_status start = fsdp_world_create(&argc, &argv, &world, &start_error);
  fsdp_start_timer_end();
  if (start != FSDP_OK) {
    fprintf(stderr, "fsdp_eval: error: %s\n", start_error.message);
    return (int)start;
  }
  if (error.status == FSDP_OK) fsdp_world_set_comm_timeout(world, (int)options.comm_timeout);
  fsdp_status status = fsdp_world_share_error(world, &error);
  // Before anything that all ranks do together because an option says so.
  if (status == FSDP_OK) status = fsdp_train_agree_on_options(world, &options, &error);
  if (status == FSDP_OK && options.rank_logs && !options.help && !options.version)
    status = fsdp_rank_logs_open(options.rank_logs, world, &error);
  if (status == FSDP_OK) status = evaluate(world, &options, &codec, &error);
  if (world->rank == 0) error.status = fsdp_output_finish(status, &error);
  status = fsdp_world_share_error(world, &error);
  if (status != FSDP_OK && world->rank == 0) fprintf(stderr, "fsdp_eval: error: %s\n", error.message);
  if (status != FSDP_OK) fsdp_rank_logs_note(world, &error);
  if (status != FSDP_OK) fsdp_world_set_failed(world);
  fsdp_text_codec_stop(&codec);
  fsdp_options_destroy(&options);
  fsdp_world_destroy(world);
  return (int)status;
}
