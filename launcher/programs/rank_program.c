#include "launcher/programs/rank_program.h"

#include "launcher/options/run_options.h"
#include "launcher/programs/auto_plan.h"
#include "launcher/report/device_line.h"
#include "launcher/report/output.h"
#include "launcher/train/rank_logs.h"
#include "runtime/exec/gpu_choice.h"
#include "runtime/watch/start_timer.h"

#include <stdio.h>

#define START_LIMIT_S 300 // if the options, of which one is this limit, are wrong
#define WHY_CPU_BYTES 1200

static bool asks_about_program(const fsdp_options *options) {
  return options->help || options->version || options->print_config;
}

// --help, --version and --print-config, once per job.
static void answer(const fsdp_rank_program *program, const fsdp_options *options) {
  if (options->help)
    fsdp_options_print_help(program->kind, (fsdp_help)options->help, stdout);
  else if (options->print_config)
    fsdp_run_options_print(options, stdout);
  else
    printf("%s %s\n", program->name, FSDP_VERSION);
}

// This rank's GPU, if the backend requires one; under `auto` none if no rank sees any, and then `why_cpu`
// (device_line.h). Called by all ranks.
static fsdp_status choose_gpu(fsdp_world *world, const fsdp_options *options, fsdp_gpu *gpu,
                              char why_cpu[WHY_CPU_BYTES], fsdp_error *error) {
  char chosen[256];
  *gpu = (fsdp_gpu){.present = false};
  snprintf(chosen, sizeof chosen, "--backend cpu (%s)", fsdp_options_place(options, "backend"));
  fsdp_device_line_why_cpu(options->backend == FSDP_BACKEND_CPU ? chosen : NULL, NULL, why_cpu,
                           WHY_CPU_BYTES);
  if (options->backend == FSDP_BACKEND_CPU || !fsdp_gpu_is_built()) return FSDP_OK;
  fsdp_error reason;
  if (fsdp_gpu_choose(world, options->allow_shared_gpu, gpu, &reason) == FSDP_OK) return FSDP_OK;
  int64_t shown = fsdp_world_sum(world, gpu->shown);
  if (options->backend == FSDP_BACKEND_AUTO && shown == 0) {
    fsdp_device_line_why_cpu(NULL, reason.message, why_cpu, WHY_CPU_BYTES);
    return FSDP_OK;
  }
  return fsdp_refuse(options, error, reason.status, "{A backend}: %.800s", reason.message);
}

static fsdp_status run(const fsdp_rank_program *program, fsdp_world *world, fsdp_options *options,
                       fsdp_text_codec *codec, fsdp_error *error) {
  fsdp_status status = fsdp_binding_check_tasks(world, error);
  if (status != FSDP_OK) return status;
  if (asks_about_program(options)) {
    if (world->rank == 0) answer(program, options);
    return FSDP_OK;
  }
  if (program->fit) program->fit(world, options, error);
  status = fsdp_world_share_error(world, error);
  if (status != FSDP_OK) return status;
  fsdp_gpu gpu;
  char why_cpu[WHY_CPU_BYTES];
  status = choose_gpu(world, options, &gpu, why_cpu, error);
  if (status == FSDP_OK && options->auto_plan) status = fsdp_auto_plan(world, &gpu, options, error);
  if (status != FSDP_OK) return status;
  fsdp_binding binding;
  fsdp_binding_config place = {.bind = options->bind, .gpu_bus = gpu.present ? gpu.bus : NULL};
  fsdp_binding_bind(world, &place, &binding);
  fsdp_sample sample;
  const fsdp_train_config config = {.program = program->kind,
                                    .world = world,
                                    .options = options,
                                    .binding = &binding,
                                    .gpu = &gpu,
                                    .why_cpu = why_cpu,
                                    .sample = &sample,
                                    .codec = codec};
  status = fsdp_sample_create(world, options, codec, &sample, error);
  if (status == FSDP_OK) status = program->run(&config, options, error);
  fsdp_sample_destroy(&sample);
  return status;
}

// Joins the ranks; the start's time limit counts from the options on, wrong ones too.
static fsdp_status join(const fsdp_rank_program *program, int argc, char **argv, const fsdp_options *options,
                        bool is_good, fsdp_world **world) {
  fsdp_error error = {0};
  fsdp_start_timer_begin(is_good ? (int)options->comm_timeout : START_LIMIT_S);
  fsdp_status status = fsdp_world_create(&argc, &argv, world, &error);
  fsdp_start_timer_end();
  if (status != FSDP_OK) fprintf(stderr, "%s: error: %s\n", program->name, error.message);
  if (status != FSDP_OK || !is_good) return status;
  fsdp_watch_set_limit((*world)->watch, (int)options->comm_timeout);
  char advice[FSDP_WATCH_ADVICE_BYTES];
  if (program->advise) fsdp_watch_set_advice((*world)->watch, program->advise(options, advice));
  return FSDP_OK;
}

// What was asked for is written whole or the program fails, on all ranks alike.
static fsdp_status finish_answer(fsdp_world *world, fsdp_status status, fsdp_error *error) {
  error->status = world->rank == 0 ? fsdp_output_finish(status, error) : status;
  return fsdp_world_share_error(world, error);
}

int fsdp_rank_program_main(const fsdp_rank_program *program, int argc, char **argv) {
  fsdp_world *world = NULL;
  fsdp_error error = {0};
  fsdp_options options;
  fsdp_text_codec codec = {0};
  fsdp_output_begin();
  fsdp_gpu_set_environment();
  const bool is_good = program->parse(&options, argc, argv, &error) == FSDP_OK;
  if (is_good) fsdp_sample_start_codec(&options, &codec);
  fsdp_status status = join(program, argc, argv, &options, is_good, &world);
  if (status != FSDP_OK) return (int)status;
  status = fsdp_world_share_error(world, &error);
  // Before anything that all ranks do together because an option says so.
  if (status == FSDP_OK) status = fsdp_train_agree_on_options(world, &options, &error);
  const bool agreed = status == FSDP_OK;
  if (agreed && options.rank_logs && !asks_about_program(&options))
    status = fsdp_rank_logs_open(options.rank_logs, world, &error);
  if (status == FSDP_OK) status = run(program, world, &options, &codec, &error);
  if (agreed && (program->answers || options.dry_run || asks_about_program(&options)))
    status = finish_answer(world, status, &error);
  if (status != FSDP_OK) fsdp_run_options_explain(&options, &error);
  if (status != FSDP_OK && world->rank == 0) fprintf(stderr, "%s: error: %s\n", program->name, error.message);
  if (status != FSDP_OK) fsdp_rank_logs_note(world, &error);
  if (status != FSDP_OK) fsdp_watch_set_said(world->watch);
  fsdp_text_codec_stop(&codec);
  fsdp_options_destroy(&options);
  fsdp_world_destroy(world);
  return (int)status;
}
