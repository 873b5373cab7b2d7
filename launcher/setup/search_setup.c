#include "launcher/setup/search_setup.h"

#include "launcher/setup/document_work.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"
#include "runtime/plan/price/price.h"

#include <stdlib.h>
#include <string.h>

// ---- From options

// Options that fix a field of the search. `auto` leaves what it stands for open.
static const struct {
  const char *option;
  fsdp_search_field field;
} fields[] = {{"mesh", FSDP_SEARCH_MESH},
              {"strategy", FSDP_SEARCH_STRATEGY},
              {"wrap", FSDP_SEARCH_WRAP},
              {"numel-to-wrap", FSDP_SEARCH_WRAP},
              {"expert-blocks", FSDP_SEARCH_EXPERT_BLOCKS},
              {"recompute", FSDP_SEARCH_RECOMPUTE},
              {"offload-activations", FSDP_SEARCH_OFFLOAD_ACTIVATIONS},
              {"cpu-offload", FSDP_SEARCH_CPU_OFFLOAD},
              {"prefetch", FSDP_SEARCH_PREFETCH},
              {"batch-size", FSDP_SEARCH_BATCH},
              {"grad-accum", FSDP_SEARCH_MICRO_BATCHES},
              {"accumulate", FSDP_SEARCH_ACCUMULATE},
              {"sequence-parallel", FSDP_SEARCH_SEQUENCE_PARALLEL}};
enum { FIELDS = sizeof fields / sizeof *fields };

static bool is_fixed(const fsdp_options *options, const char *option) {
  if (!fsdp_options_given(options, option)) return false;
  if (strcmp(option, "recompute") == 0) return strcmp(options->recompute, "auto") != 0;
  if (strcmp(option, "offload-activations") == 0) return strcmp(options->offload_activations, "auto") != 0;
  return true;
}

// What a profile decided is an option of the plans.
static fsdp_status take_backend(fsdp_options *options, fsdp_program_kind program,
                                const fsdp_device_profile *profile, fsdp_error *error) {
  if (fsdp_options_given(options, "backend") || program != FSDP_PROGRAM_PLAN) return FSDP_OK;
  return fsdp_options_set(options, program, "backend", profile->device == FSDP_OP_CPU ? "cpu" : "cuda",
                          "--profile", error);
}

// As above, the kernel that the profile's GPU runs and the number for which its work is cut, where a plan
// without the profile would have others.
static fsdp_status take_attention(fsdp_options *options, fsdp_program_kind program,
                                  const fsdp_plan_config *config, fsdp_error *error) {
  const fsdp_op_gpu usual = fsdp_plan_gpu(&(fsdp_op_gpu){.attention = FSDP_ATTENTION_AUTO});
  if (program != FSDP_PROGRAM_PLAN || config->backend->device == FSDP_OP_CPU) return FSDP_OK;
  const int multiprocessors = fsdp_plan_gpu(&config->gpu).multiprocessors;
  if (!options->multiprocessors && multiprocessors != usual.multiprocessors) {
    char text[16];
    snprintf(text, sizeof text, "%d", multiprocessors);
    fsdp_status status = fsdp_options_set(options, program, "multiprocessors", text, "--profile", error);
    if (status) return status;
  }
  const fsdp_attention_kernel kernel = fsdp_plan_attention(config);
  if (config->gpu.attention != FSDP_ATTENTION_AUTO ||
      kernel == fsdp_attention_kernel_of(&usual, config->param_dtype, config->model.head_dim,
                                         config->dropout.attention > 0))
    return FSDP_OK;
  return fsdp_options_set(options, program, "attention", fsdp_attention_kernel_name(kernel), "--profile",
                          error);
}

// Of a GPU the profile's memory is an option of the plans too: they are packed for it, so without it the
// commands would make other programs.
static fsdp_status take_limit(fsdp_options *options, fsdp_program_kind program,
                              const fsdp_device_profile *profile, const fsdp_limits *limits,
                              fsdp_error *error) {
  char bytes[32];
  if (program != FSDP_PROGRAM_PLAN || profile->device == FSDP_OP_CPU || options->memory_limit) return FSDP_OK;
  snprintf(bytes, sizeof bytes, "%lld", (long long)limits->memory.bytes[FSDP_SPACE_DEVICE]);
  return limits->memory.bytes[FSDP_SPACE_DEVICE]
             ? fsdp_options_set(options, program, "memory-limit", bytes, "--profile", error)
             : FSDP_OK;
}

// By the machine's own ratios; its plans run without the profile, and so with the reserve of those.
static void take_ratios(const fsdp_device_profile *measured, fsdp_plan_backend *backend) {
  const fsdp_plan_backend own = fsdp_pricing_backend(measured);
  backend->flops_per_byte = own.flops_per_byte;
  backend->link_ratio = own.link_ratio;
}

fsdp_status fsdp_search_job_create(fsdp_options *options, fsdp_program_kind program,
                                   const fsdp_setup_ranks *ranks, fsdp_device_profile *measured,
                                   fsdp_search_job *job, fsdp_error *error) {
  *job = (fsdp_search_job){.measured = measured};
  fsdp_search_config *config = &job->config;
  fsdp_status status = fsdp_setup_configure(options, program, ranks, &job->setup, &config->base, error);
  if (status == FSDP_OK) status = fsdp_document_work_find(options, &job->setup, &config->base, error);
  if (status) return status;
  config->profile = options->profile ? job->setup.profile : measured;
  if (!options->profile) take_ratios(measured, &job->setup.backend);
  status = take_backend(options, program, config->profile, error);
  if (status == FSDP_OK) status = fsdp_pricing_check(&config->base, config->profile, error);
  if (status == FSDP_OK) status = take_attention(options, program, &config->base, error);
  if (status) return status;
  config->ranks = ranks->ranks;
  config->ranks_per_node = ranks->ranks_per_node;
  int parts; // as without a search
  status = fsdp_plan_count_batch_parts(&config->base, &parts, error);
  if (status && (!options->global_batch || fsdp_options_given(options, "mesh"))) return status;
  config->global_batch =
      options->global_batch ? options->global_batch : options->batch * options->grad_accum * parts;
  for (int i = 0; i < FIELDS; i++) config->fixed[fields[i].field] |= is_fixed(options, fields[i].option);
  if (options->sharding) config->fixed[FSDP_SEARCH_STRATEGY] = true; // rules say what is sharded
  config->fixed_tensor = fsdp_options_given(options, "tensor-parallel") ? (int)options->tensor_parallel : 0;
  config->fixed_context =
      fsdp_options_given(options, "context-parallel") ? (int)options->context_parallel : 0;
  config->fixed_expert = fsdp_options_given(options, "expert-parallel") ? (int)options->expert_parallel : 0;
  fsdp_setup_find_limits(options, ranks, config->profile, &job->limits);
  memcpy(config->limit_bytes, job->limits.limits.memory.bytes, sizeof config->limit_bytes);
  config->shared_limit_bytes = job->limits.limits.memory.shared_bytes;
  config->margin = options->memory_margin;
  return take_limit(options, program, config->profile, &job->limits.limits, error);
}

void fsdp_search_job_destroy(fsdp_search_job *job) {
  fsdp_setup_destroy(&job->setup);
  fsdp_device_profile_destroy(job->measured);
  job->measured = NULL;
}

// ---- To options

typedef struct taking {
  fsdp_options *options;
  fsdp_program_kind program;
  const char *place;
  fsdp_status status;
  fsdp_error *error;
} taking;

static void take(taking *t, const char *name, const char *value) {
  if (t->status == FSDP_OK)
    t->status = fsdp_options_set(t->options, t->program, name, value, t->place, t->error);
}

static void take_number(taking *t, const char *name, int64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)value);
  take(t, name, text);
}

static void take_wrap(taking *t, const fsdp_wrap_policy *wrap) {
  if (wrap->kind == FSDP_WRAP_SIZE) take_number(t, "numel-to-wrap", wrap->numel);
  take(t, "wrap", wrap->kind == FSDP_WRAP_SIZE ? "size" : wrap->kind == FSDP_WRAP_BLOCK ? "block" : "none");
}

fsdp_status fsdp_search_take(const fsdp_search_job *job, const fsdp_plan_config *plan,
                             fsdp_program_kind program, const char *place, fsdp_options *options,
                             fsdp_error *error) {
  const bool *fixed = job->config.fixed;
  char mesh[FSDP_MESH_TEXT_BYTES], rules[FSDP_SAVING_TEXT_BYTES], margin[32];
  taking t = {options, program, place, FSDP_OK, error};
  if (!fixed[FSDP_SEARCH_MESH]) take(&t, "mesh", fsdp_mesh_print(&plan->mesh, ",", mesh));
  if (!fixed[FSDP_SEARCH_STRATEGY]) take(&t, "strategy", fsdp_strategy_name(plan->strategy));
  // It has a meaning beside tensor alone, and may be of another plan that was taken before.
  if (!fixed[FSDP_SEARCH_SEQUENCE_PARALLEL])
    fsdp_option_reset(options, fsdp_option_find("sequence-parallel"));
  if (options->sequence_parallel != plan->sequence_parallel && fsdp_mesh_size(&plan->mesh, "tensor") > 1)
    take(&t, "sequence-parallel", plan->sequence_parallel ? "on" : "off");
  if (!fixed[FSDP_SEARCH_WRAP]) take_wrap(&t, &plan->wrap);
  // They may be of another plan that was taken before.
  if (!fixed[FSDP_SEARCH_EXPERT_BLOCKS]) fsdp_option_reset(options, fsdp_option_find("expert-blocks"));
  if (!fixed[FSDP_SEARCH_EXPERT_BLOCKS] && plan->expert_blocks > 1)
    take_number(&t, "expert-blocks", plan->expert_blocks);
  if (!fixed[FSDP_SEARCH_RECOMPUTE])
    take(&t, "recompute", fsdp_saving_print(&plan->saving, FSDP_FATE_RECOMPUTE, rules));
  if (!fixed[FSDP_SEARCH_OFFLOAD_ACTIVATIONS])
    take(&t, "offload-activations", fsdp_saving_print(&plan->saving, FSDP_FATE_OFFLOAD, rules));
  if (!fixed[FSDP_SEARCH_CPU_OFFLOAD]) take(&t, "cpu-offload", plan->cpu_offload ? "on" : "off");
  if (!fixed[FSDP_SEARCH_PREFETCH]) take_number(&t, "prefetch", plan->prefetch);
  if (!fixed[FSDP_SEARCH_BATCH]) take_number(&t, "batch-size", plan->batch);
  if (!fixed[FSDP_SEARCH_MICRO_BATCHES]) take_number(&t, "grad-accum", plan->micro_batches);
  const bool is_local = plan->accumulate == FSDP_ACCUMULATE_LOCAL;
  if (!fixed[FSDP_SEARCH_ACCUMULATE] && is_local && plan->micro_batches == 1) // both are the same program
    fsdp_option_reset(options, fsdp_option_find("accumulate"));
  else if (!fixed[FSDP_SEARCH_ACCUMULATE])
    take(&t, "accumulate", is_local ? "local" : "reduce");
  if (job->config.limit_bytes[FSDP_SPACE_DEVICE]) // plans are packed into what it leaves
    take(&t, "memory-margin", fsdp_print_real(job->config.margin, margin, sizeof margin));
  return t.status;
}

// ---- Nothing fits

// The limits less the margin, which is named with them; `places`: text that they point to.
static fsdp_limits limits_of_search(const fsdp_search_job *job, char places[2][192]) {
  fsdp_limits limits = job->limits.limits;
  const char **const of[] = {&limits.place[FSDP_SPACE_DEVICE], &limits.shared_place};
  limits.memory = fsdp_search_allowed(&job->config);
  for (int i = 0; i < 2 && job->config.margin > 0; i++) {
    snprintf(places[i], sizeof places[i], "%s, less --memory-margin %g%%,", *of[i] ? *of[i] : "",
             100 * job->config.margin);
    *of[i] = places[i];
  }
  return limits;
}

// Why nothing could be planned: the profile knows of no link between ranks, or the batch does not divide.
static fsdp_status fail_unplanned(const fsdp_search_job *job, fsdp_error *error) {
  const fsdp_search_config *c = &job->config;
  const fsdp_profile_group all = {
      .ranks = c->ranks, .ranks_per_node = (int)fsdp_min_i64(c->ranks, c->ranks_per_node), .groups = 1};
  fsdp_status status = fsdp_pricing_check_group(c->profile, FSDP_ALL_REDUCE, &all, error);
  if (status) return status;
  return fsdp_search_fail_undivided(c, error);
}

fsdp_status fsdp_search_fail_unfit(const fsdp_search_job *job, const fsdp_search_result *result,
                                   fsdp_error *error) {
  fsdp_plan *plan;
  fsdp_error reason;
  bool planned = false;
  for (int k = 0; k < result->kind_count; k++) planned |= result->kinds[k].outcome != FSDP_SEARCH_IMPOSSIBLE;
  if (!planned) return fail_unplanned(job, error);
  fsdp_plan_config least = result->least;
  least.limits = job->limits.limits.memory;
  fsdp_status status = fsdp_plan_create(&least, &plan, error);
  if (status) return status;
  char mesh[FSDP_MESH_TEXT_BYTES], places[2][192];
  const fsdp_limits limits = limits_of_search(job, places);
  status = fsdp_capacity_check(plan, &limits, &reason);
  if (status && fsdp_capacity_fits(plan, &job->limits.limits))
    fsdp_fail(
        error, status,
        "no plan leaves --memory-margin %g%% of the device's memory free: --strategy %s --mesh %s needs "
        "least, and fits with --memory-margin 0; with the margin, %.700s",
        100 * job->config.margin, fsdp_strategy_name(plan->config.strategy),
        fsdp_mesh_print(&plan->config.mesh, ",", mesh), reason.message);
  else if (status)
    fsdp_fail(error, status,
              "no plan fits; of all that were tried --strategy %s --mesh %s needs least: %.800s",
              fsdp_strategy_name(plan->config.strategy), fsdp_mesh_print(&plan->config.mesh, ",", mesh),
              reason.message);
  else
    status = fsdp_fail(error, FSDP_ERR_CAPACITY, "no plan was found that fits the memory limit");
  fsdp_plan_destroy(plan);
  return status;
}
