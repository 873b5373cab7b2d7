// Trains a language model over the ranks that mpirun started.
#include "launcher/options/run_options.h"
#include "launcher/programs/rank_program.h"
#include "launcher/programs/restart_advice.h"
#include "launcher/report/output.h"
#include "launcher/train/stop.h"

#include <stdio.h>

static int stop_signal; // the signal that ended the run early, or 0

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

static fsdp_status fit(const fsdp_world *world, fsdp_options *options, fsdp_error *error) {
  const fsdp_status status = fsdp_run_options_fit(options, world->size, error);
  return status ? status : check_ranks(world, options, error);
}

// Lines that were lost, on a full disk for example, are reported when the run is done: by rank 0 alone, as
// nothing is left that ranks do together. A run that a signal stopped keeps its status, by which it is
// started again.
static fsdp_status check_output(const fsdp_world *world, fsdp_error *error) {
  fsdp_error lost;
  if (world->rank != 0 || fsdp_output_finish(FSDP_OK, &lost) == FSDP_OK) return FSDP_OK;
  if (!stop_signal) return fsdp_fail(error, lost.status, "%.800s; the run itself is complete", lost.message);
  fprintf(stderr, "fsdp_train: warning: %s\n", lost.message);
  return FSDP_OK;
}

static fsdp_status train(const fsdp_train_config *config, fsdp_options *options, fsdp_error *error) {
  fsdp_status status = fsdp_sample_check(config->sample, options, error);
  if (status == FSDP_OK) status = fsdp_train_run(config, &stop_signal, error);
  return status == FSDP_OK && !options->dry_run ? check_output(config->world, error) : status;
}

int main(int argc, char **argv) {
  static const fsdp_rank_program program = {.name = "fsdp_train",
                                            .kind = FSDP_PROGRAM_TRAIN,
                                            .parse = fsdp_run_options_parse,
                                            .advise = fsdp_restart_advice,
                                            .fit = fit,
                                            .run = train};
  fsdp_stop_install();
  const int status = fsdp_rank_program_main(&program, argc, argv);
  return status == FSDP_OK && stop_signal ? fsdp_stop_status(stop_signal) : status;
}
