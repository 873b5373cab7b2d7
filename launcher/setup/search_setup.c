#include "launcher/setup/search_setup.h"

#include "launcher/setup/document_work.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"
#include "runtime/plan/price/price.h"

#include <stdlib.h>
#include <string.h>

// ---- From options

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
  if (status == FSDP_OK) status = fsdp_settings_search(options, ranks, config->profile, config, error);
  if (status == FSDP_OK) status = take_attention(options, program, &config->base, error);
  if (status) return status;
  fsdp_setup_find_limits(options, ranks, config->profile, &job->limits);
  memcpy(config->limit_bytes, job->limits.limits.memory.bytes, sizeof config->limit_bytes);
  config->shared_limit_bytes = job->limits.limits.memory.shared_bytes;
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
  const bool *fixed;
  const fsdp_plan_config *plan;
  fsdp_status status;
  fsdp_error *error;
} taking;

// What the plan would be without the option, which may be of another plan that was taken before.
static bool is_default(const fsdp_plan_config *plan, fsdp_search_field field) {
  switch (field) {
  case FSDP_SEARCH_SEQUENCE_PARALLEL: // it has a meaning beside tensor alone
    return plan->sequence_parallel || fsdp_mesh_size(&plan->mesh, FSDP_AXIS_TENSOR) == 1;
  case FSDP_SEARCH_EXPERT_BLOCKS:
    return plan->expert_blocks == 1;
  case FSDP_SEARCH_ACCUMULATE: // with one micro-batch both are the same program
    return plan->accumulate == FSDP_ACCUMULATE_LOCAL && plan->micro_batches == 1;
  default:
    return false;
  }
}

static void take(void *context, fsdp_search_field field, const char *name, const char *value) {
  taking *t = context;
  if (t->status || (field < FSDP_SEARCH_FIELD_COUNT && t->fixed[field])) return;
  if (is_default(t->plan, field))
    fsdp_option_reset(t->options, fsdp_option_find(name));
  else
    t->status = fsdp_options_set(t->options, t->program, name, value, t->place, t->error);
}

fsdp_status fsdp_search_take(const fsdp_search_job *job, const fsdp_plan_config *plan,
                             fsdp_program_kind program, const char *place, fsdp_options *options,
                             fsdp_error *error) {
  taking t = {options, program, place, job->config.fixed, plan, FSDP_OK, error};
  fsdp_settings_of_plan(&job->config, plan, take, &t);
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
