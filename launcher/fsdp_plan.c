// Plans a training step and prints what it costs: no device, no ranks, nothing allocated.
#include "launcher/memory_profile.h"
#include "launcher/options.h"
#include "launcher/report.h"
#include "launcher/setup.h"
#include "runtime/base/size.h"

// A node of a machine made for training has eight GPUs.
#define RANKS_PER_NODE_DEFAULT 8

static void print_plan(const fsdp_options *options, const fsdp_setup *setup) {
  if (options->print_program) fsdp_program_print(setup->plan->program, stdout);
  if (options->print_model) fsdp_units_print_tree(setup->plan->units, setup->plan->graph, stdout);
  if (options->json) {
    json_t *report = fsdp_report_json(setup->plan);
    json_dumpf(report, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(report);
    return;
  }
  // What was asked for has the standard output to itself.
  bool asked = options->print_program || options->print_model;
  fsdp_report_print(setup->plan, setup->model_name, asked ? stderr : stdout);
}

static fsdp_status run(const fsdp_options *options, fsdp_setup *setup, fsdp_error *error) {
  int ranks = (int)options->ranks;
  int per_node = options->ranks_per_node ? (int)options->ranks_per_node
                                         : (int)fsdp_min_i64(ranks, RANKS_PER_NODE_DEFAULT);
  fsdp_setup_ranks planned = {
      .ranks = ranks, .ranks_per_node = per_node, .even_nodes = ranks % per_node == 0};
  fsdp_status status = fsdp_setup_create(options, FSDP_PROGRAM_PLAN, &planned, setup, error);
  if (status != FSDP_OK) return status;
  char note[512];
  for (int i = 0; fsdp_options_note(options, i, note, (int)sizeof note); i++) {
    fprintf(stderr, "fsdp_plan: note: %s\n", note);
  }
  if (fsdp_setup_note(options, setup->plan, note, sizeof note))
    fprintf(stderr, "fsdp_plan: note: %s\n", note);
  print_plan(options, setup);
  if (!options->memory_profile) return FSDP_OK;
  return fsdp_memory_profile_write(setup->plan, setup->model_name, options->memory_profile, error);
}

int main(int argc, char **argv) {
  fsdp_options options;
  fsdp_setup setup = {0};
  fsdp_error error = {0};
  fsdp_status status = fsdp_options_parse(&options, FSDP_PROGRAM_PLAN, argc, argv, &error);
  if (status == FSDP_OK && options.help) {
    fsdp_options_print_help(FSDP_PROGRAM_PLAN, stdout);
  } else if (status == FSDP_OK && options.version) {
    printf("fsdp_plan %s\n", FSDP_VERSION);
  } else if (status == FSDP_OK) {
    status = run(&options, &setup, &error);
  }
  if (status != FSDP_OK) fprintf(stderr, "fsdp_plan: error: %s\n", error.message);
  fsdp_setup_destroy(&setup);
  fsdp_options_destroy(&options);
  return (int)status;
}
