// Plans a training step and prints what it costs: no device, no ranks, nothing allocated.
#include "launcher/options/options.h"
#include "launcher/programs/plan_commands.h"
#include "launcher/programs/run_length.h"
#include "launcher/report/memory_profile.h"
#include "launcher/report/output.h"
#include "launcher/report/plan_notes.h"
#include "launcher/report/price.h"
#include "launcher/report/report.h"
#include "launcher/report/strategies.h"
#include "launcher/report/trace_file.h"
#include "launcher/setup/document_work.h"
#include "launcher/setup/documents_choice.h"
#include "launcher/setup/setup.h"
#include "launcher/setup/setup_notes.h"
#include "launcher/setup/sharding_file.h"
#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "runtime/exec/self_test.h"

#include <malloc.h>

// Ranks whose attention is that much above the mean are noted.
#define UNEQUAL 1.0005

// Of the layers that a model has most of.
static const fsdp_document_work *work_of(const fsdp_plan_config *config) {
  const fsdp_model_config *model = &config->model;
  return &config->document_work[model->window > 0 && 2 * model->first_window_layer < model->num_layers];
}

static void print_notes(const fsdp_options *options, const fsdp_setup *setup) {
  char note[512];
  for (int i = 0; fsdp_options_note(options, i, note, (int)sizeof note); i++)
    fprintf(stderr, "fsdp_plan: note: %s\n", note);
  if (fsdp_mesh_note(options, &setup->plan->config.mesh, note, sizeof note))
    fprintf(stderr, "fsdp_plan: note: %s\n", note);
  fsdp_sharding_notes(options, setup->sharding, &setup->plan->config.mesh, "fsdp_plan: note: ", stderr);
  if (fsdp_positions_note(setup->plan, note, sizeof note)) fprintf(stderr, "fsdp_plan: note: %s\n", note);
  fsdp_plan_warn(setup->plan, "fsdp_plan", stderr);
  const fsdp_setup_ranks ranks = fsdp_setup_ranks_planned(options);
  fsdp_setup_warn_of_limits(options, &ranks, setup->profile, "fsdp_plan", stderr);
  const fsdp_document_work *work = work_of(&setup->plan->config);
  if (work->left > 0)
    fprintf(stderr, "fsdp_plan: note: attention is priced by the documents of --data: %.1f%% of its pairs\n",
            100 * work->left);
  if (work->most > UNEQUAL)
    fprintf(stderr, "fsdp_plan: note: the rank with most of these has %.3f times the mean\n", work->most);
  if (options->price) fsdp_note_threads(options, setup->profile, "fsdp_plan", stderr);
  if (fsdp_resize_note(options, setup, note, sizeof note)) fprintf(stderr, "fsdp_plan: note: %s\n", note);
  if (options->price && fsdp_run_length_note(options, (int64_t)fsdp_plan_step_tokens(setup->plan), note))
    fprintf(stderr, "fsdp_plan: note: %s\n", note);
  if (fsdp_padding_note(setup->plan, note, sizeof note)) fprintf(stderr, "fsdp_plan: note: %s\n", note);
}

// A plan that was made, and what is said of it.
typedef struct planned {
  const fsdp_options *options;
  const fsdp_setup *setup;
  bool fits;
  fsdp_price_report price;         // with --price
  bool correct;                    // with --self-test
  fsdp_self_test_report self_test; // of one that passed
} planned;

static json_t *self_test_json(const planned *p) {
  const fsdp_self_test_report *report = &p->self_test;
  if (!p->correct) return json_pack("{s:b}", "passed", 0);
  return json_pack("{s:b, s:i, s:i, s:i, s:i, s:f, s:b}", "passed", 1, "ranks", report->ranks, "layers",
                   report->layers, "steps", report->steps, "gradients", report->parameters,
                   "largest_difference", report->largest, "of_all_layers", report->unlike < 0);
}

static json_t *report_json(const planned *p) {
  const fsdp_options *options = p->options;
  const fsdp_setup *setup = p->setup;
  const fsdp_plan_config *config = &setup->plan->config;
  const fsdp_setup_ranks ranks = fsdp_setup_ranks_planned(options);
  char across[FSDP_MESH_TEXT_BYTES];
  json_t *report = fsdp_report_json(setup->plan);
  int failed = json_object_set_new(report, "fits", json_boolean(p->fits));
  if (options->price) failed |= json_object_set_new(report, "time", fsdp_price_json(&p->price));
  const fsdp_document_work *work = work_of(config);
  if (work->left > 0)
    failed |= json_object_set_new(report, "documents",
                                  json_pack("{s:f, s:f, s:f}", "attention_left", work->left, "most_of_a_rank",
                                            work->most, "most_in_a_context_group", work->context));
  if (options->self_test) failed |= json_object_set_new(report, "self_test", self_test_json(p));
  failed |= json_object_set_new(report, "planned_for",
                                json_pack("{s:s, s:s, s:i, s:s?}", "device", config->backend->name,
                                          "param_dtype", fsdp_dtype_name(config->param_dtype),
                                          "ranks_per_node", ranks.ranks_per_node, "across_nodes",
                                          fsdp_mesh_across_nodes(&config->mesh, &ranks, across)));
  FSDP_CHECK(failed == 0, "JSON of the plan");
  return report;
}

// A plan for the wrong kind of device is wrong by its dtype's bytes.
static void print_target(const fsdp_options *options, const fsdp_plan *plan) {
  bool gpu = plan->config.backend->device == FSDP_OP_CUDA, given = fsdp_options_given(options, "backend");
  printf("planned for a %s, parameters in %s%s\n", gpu ? "GPU" : "CPU",
         fsdp_dtype_name(plan->config.param_dtype),
         given || options->profile ? "" : "; for a GPU add --backend cuda");
  const fsdp_setup_ranks ranks = fsdp_setup_ranks_planned(options);
  char axes[FSDP_MESH_TEXT_BYTES];
  const char *across = fsdp_mesh_across_nodes(&plan->config.mesh, &ranks, axes);
  if (across)
    printf("on nodes of %d rank%s: %s across nodes\n", ranks.ranks_per_node,
           fsdp_plural(ranks.ranks_per_node), across);
}

// What was asked for, then the table that is always printed.
static void print_plan(const planned *p) {
  const fsdp_options *options = p->options;
  const fsdp_setup *setup = p->setup;
  if (options->json) {
    fsdp_output_json(report_json(p));
    return;
  }
  if (options->print_sharding) {
    fsdp_strategies_print_sharding(setup->plan, stdout);
    return;
  }
  if (options->print_model) fsdp_units_print_tree(setup->plan->units, setup->plan->graph, stdout);
  if (options->print_program) {
    if (options->print_model) putchar('\n');
    fsdp_program_print(setup->plan->program, stdout);
  }
  if (options->print_program || options->print_model) putchar('\n');
  print_target(options, setup->plan);
  fsdp_report_print(setup->plan, setup->model_name, stdout);
  if (options->price) putchar('\n');
  if (options->price) fsdp_price_print(&p->price, stdout);
  if (options->trace) printf("trace:     two simulated steps in %s\n", options->trace);
}

// What --self-test asks for.
static fsdp_status self_test(planned *p, fsdp_error *error) {
  if (!p->options->self_test) return FSDP_OK;
  fsdp_status status = fsdp_self_test(p->setup->plan, &p->self_test, error);
  p->correct = status == FSDP_OK;
  return status;
}

// Beside a file of rules the line is no part of what is printed.
static void print_self_test(const planned *p) {
  char text[FSDP_SELF_TEST_TEXT];
  if (!p->correct || p->options->json) return;
  fprintf(p->options->print_sharding ? stderr : stdout, "self-test: %s\n",
          fsdp_self_test_print(&p->self_test, text));
}

// What --price asks for.
static fsdp_status price(planned *p, fsdp_error *error) {
  return p->options->price ? fsdp_run_length_price(p->options, p->setup, &p->price, error) : FSDP_OK;
}

// What --trace asks for: simulated steps.
static fsdp_status trace(const planned *p, fsdp_error *error) {
  const fsdp_setup *setup = p->setup;
  const fsdp_setup_ranks ranks = fsdp_setup_ranks_planned(p->options);
  fsdp_pricing pricing;
  if (!p->options->trace) return FSDP_OK;
  fsdp_status status =
      fsdp_pricing_create(setup->plan, setup->profile, ranks.ranks_per_node, &pricing, error);
  if (status) return status;
  fsdp_simulation *simulation = fsdp_simulation_create(&pricing);
  fsdp_timeline *timeline = fsdp_simulation_timeline(simulation);
  const fsdp_trace_source source = {
      .plan = setup->plan, .timeline = timeline, .model_name = setup->model_name, .kind = "simulated"};
  status = fsdp_trace_write(p->options->trace, &source, error);
  fsdp_timeline_destroy(timeline);
  fsdp_simulation_destroy(simulation);
  return status;
}

// A plan is printed also where its self-test fails.
static fsdp_status price_and_print(planned *p, fsdp_error *error) {
  fsdp_status status = price(p, error);
  if (status == FSDP_OK) status = trace(p, error);
  if (status != FSDP_OK) return status;
  status = self_test(p, error);
  print_notes(p->options, p->setup);
  print_plan(p);
  print_self_test(p);
  fflush(stdout); // before the error
  return status;
}

static fsdp_status run(const fsdp_options *options, fsdp_setup *setup, fsdp_error *error) {
  if (fsdp_documents_find(options, error) != FSDP_OK) return error->status;
  fsdp_status status = fsdp_document_work_plan(options, setup, error);
  if (status != FSDP_OK && !(status == FSDP_ERR_CAPACITY && setup->plan)) return status;
  planned p = {.options = options, .setup = setup, .fits = status == FSDP_OK};
  fsdp_error failed;
  fsdp_status printed = price_and_print(&p, &failed);
  fsdp_price_report_release(&p.price);
  const bool fails = printed != FSDP_OK;
  if (!fails && options->memory_profile)
    printed = fsdp_memory_profile_write(setup->plan, setup->model_name, options->memory_profile, &failed);
  if (printed == FSDP_OK || (status != FSDP_OK && !fails)) return status;
  *error = failed;
  return printed;
}

// A search makes thousands of plans: the heap keeps what one frees for the next.
static void keep_heap(void) {
  mallopt(M_MMAP_THRESHOLD, 256 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
}

int main(int argc, char **argv) {
  fsdp_options options;
  fsdp_setup setup = {0};
  fsdp_error error = {0};
  fsdp_output_begin();
  fsdp_status status = fsdp_options_parse(&options, FSDP_PROGRAM_PLAN, argc, argv, &error);
  if (status == FSDP_OK && *options.replaced) fprintf(stderr, "fsdp_plan: warning: %s\n", options.replaced);
  if (status == FSDP_OK && options.help) {
    fsdp_options_print_help(FSDP_PROGRAM_PLAN, (fsdp_help)options.help, stdout);
  } else if (status == FSDP_OK && options.version) {
    printf("fsdp_plan %s\n", FSDP_VERSION);
  } else if (status == FSDP_OK && options.machines) {
    keep_heap();
    status = fsdp_machines_compare(&options, argc, argv, &error);
  } else if (status == FSDP_OK && options.search) {
    keep_heap();
    status = fsdp_search_and_print(&options, &error);
  } else if (status == FSDP_OK && options.compare) {
    status = fsdp_compare_plans(&options, argc, argv, &error);
  } else if (status == FSDP_OK && (options.graph || options.print_strategies)) {
    status = fsdp_propagate_and_print(&options, &error);
  } else if (status == FSDP_OK) {
    status = run(&options, &setup, &error);
  }
  status = fsdp_output_finish(status, &error);
  if (status != FSDP_OK) fprintf(stderr, "fsdp_plan: error: %s\n", error.message);
  fsdp_setup_destroy(&setup);
  fsdp_options_destroy(&options);
  return (int)status;
}
