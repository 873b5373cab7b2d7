// Trains a language model over the ranks that mpirun started.
#include "launcher/options/run_options.h"
#include "launcher/programs/auto_plan.h"
#include "launcher/programs/rank_gpu.h"
#include "launcher/programs/restart_advice.h"
#include "launcher/report/output.h"
#include "launcher/train/rank_logs.h"
#include "launcher/train/stop.h"
#include "launcher/train/train.h"
#include "runtime/base/check.h"
#include "runtime/watch/start_timer.h"

#include <stdio.h>

// --help, --version and --print-config, once per job.
static bool answered(const fsdp_world *world, const fsdp_options *options) {
  if (!options->help && !options->version && !options->print_config) return false;
  if (world->rank == 0) {
    if (options->help)
      fsdp_options_print_help(FSDP_PROGRAM_TRAIN, (fsdp_help)options->help, stdout);
    else if (options->print_config)
      fsdp_run_options_print(options, stdout);
    else
      printf("fsdp_train %s\n", FSDP_VERSION);
  }
  return true;
}

#define START_LIMIT_S 300 // if the options, of which one is this limit, are wrong

// A plan that was saved for other ranks.
static fsdp_status check_ranks(const fsdp_world *world, const fsdp_options *options, fsdp_error *error) {
  const struct {
    const char *name;
    int64_t planned;
    int started;
  } counts[] = {{"ranks", options->ranks, world->size},
                {"ranks-per-node", options->ranks_per_node, world->local_size}};
  for (int i = 0; i < 2; i++) {
    if (!fsdp_options_given(options, counts[i].name) || counts[i].planned == counts[i].started) continue;
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "--%s %lld (%s), but mpirun started %d%s: start as many (mpirun -np %lld%s), plan for "
                     "these with fsdp_plan, or leave it out",
                     counts[i].name, (long long)counts[i].planned,
                     fsdp_options_place(options, counts[i].name), counts[i].started, i ? " on this node" : "",
                     (long long)options->ranks, options->ranks_per_node ? " --map-by ppr:N:node" : "");
  }
  return FSDP_OK;
}

static fsdp_status train(fsdp_world *world, fsdp_options *options, fsdp_text_codec *codec, int *stop_signal,
                         fsdp_error *error) {
  fsdp_status status = fsdp_binding_check_tasks(world, error);
  if (status != FSDP_OK || answered(world, options)) return status;
  if (fsdp_run_options_fit(options, world->size, error) == FSDP_OK) check_ranks(world, options, error);
  status = fsdp_world_share_error(world, error);
  if (status != FSDP_OK) return status;
  fsdp_gpu gpu;
  char why_cpu[FSDP_WHY_CPU_BYTES];
  status = fsdp_rank_gpu_choose(world, options, &gpu, why_cpu, error);
  if (status == FSDP_OK && options->auto_plan) status = fsdp_auto_plan(world, &gpu, options, error);
  if (status != FSDP_OK) return status;
  fsdp_binding binding;
  fsdp_binding_config place = {.bind = options->bind, .gpu_bus = gpu.present ? gpu.bus : NULL};
  fsdp_binding_bind(world, &place, &binding);
  fsdp_train_config config = {
      .world = world, .options = options, .binding = &binding, .gpu = &gpu, .why_cpu = why_cpu};
  fsdp_sample sample;
  config.sample = &sample;
  config.codec = codec;
  status = fsdp_sample_create(world, options, codec, &sample, error);
  if (status == FSDP_OK) status = fsdp_sample_check(&sample, options, error);
  if (status == FSDP_OK) status = fsdp_train_run(&config, stop_signal, error);
  fsdp_sample_destroy(&sample);
  return status;
}

// What was asked for is the standard output itself, and not a run.
static bool is_answer(const fsdp_options *options) {
  return options->help || options->version || options->dry_run || options->print_config;
}

// Such an answer is written whole or the program fails, on all ranks alike.
static fsdp_status finish_answer(fsdp_world *world, fsdp_error *error) {
  if (world->rank == 0) error->status = fsdp_output_finish(error->status, error);
  return fsdp_world_share_error(world, error);
}

int main(int argc, char **argv) {
  fsdp_world *world = NULL;
  fsdp_error error = {0}, start_error = {0};
  fsdp_options options;
  int stop_signal = 0;
  fsdp_output_begin();
  fsdp_stop_install();
  fsdp_gpu_set_environment();
  // What is wrong with the options is reported when all ranks have joined; their time limit counts from now.
  fsdp_run_options_parse(&options, argc, argv, &error);
  fsdp_text_codec codec = {0};
  if (error.status == FSDP_OK) fsdp_sample_start_codec(&options, &codec);
  fsdp_start_timer_begin(error.status == FSDP_OK ? (int)options.comm_timeout : START_LIMIT_S);
  fsdp_status start = fsdp_world_create(&argc, &argv, &world, &start_error);
  fsdp_start_timer_end();
  if (start != FSDP_OK) {
    fprintf(stderr, "fsdp_train: error: %s\n", start_error.message);
    return (int)start;
  }
  if (error.status == FSDP_OK) {
    fsdp_world_set_comm_timeout(world, (int)options.comm_timeout);
    char advice[FSDP_WATCH_ADVICE_BYTES];
    fsdp_world_set_advice(world, fsdp_restart_advice(&options, advice));
  }
  fsdp_status status = fsdp_world_share_error(world, &error);
  // Before anything that all ranks do together because an option says so.
  if (status == FSDP_OK) status = fsdp_train_agree_on_options(world, &options, &error);
  const bool agreed = status == FSDP_OK;
  if (agreed && options.rank_logs && !options.help && !options.version && !options.print_config) {
    status = fsdp_rank_logs_open(options.rank_logs, world, &error);
  }
  if (status == FSDP_OK) status = train(world, &options, &codec, &stop_signal, &error);
  if (agreed && is_answer(&options)) status = finish_answer(world, &error);
  if (status != FSDP_OK && world->rank == 0) fprintf(stderr, "fsdp_train: error: %s\n", error.message);
  if (status != FSDP_OK) fsdp_rank_logs_note(world, &error);
  if (status != FSDP_OK) fsdp_world_set_failed(world);
  fsdp_text_codec_stop(&codec);
  fsdp_options_destroy(&options);
  fsdp_world_destroy(world);
  if (status == FSDP_OK && stop_signal) return fsdp_stop_status(stop_signal);
  return (int)status;
}
