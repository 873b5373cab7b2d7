#include "launcher/setup/setup.h"

#include "launcher/profile/profile_file.h"
#include "launcher/setup/documents_choice.h"
#include "launcher/setup/sharding_file.h"
#include "launcher/setup/strategies_file.h"
#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "runtime/plan/search/saving_choice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- The plan

static fsdp_status check_device(const fsdp_options *options, fsdp_program_kind program,
                                const fsdp_setup_ranks *ranks, fsdp_error *error) {
  if (program == FSDP_PROGRAM_PLAN || options->backend != FSDP_BACKEND_CUDA || ranks->gpu) return FSDP_OK;
  return fsdp_refuse(options, error, FSDP_ERR_PEER,
                     "{A backend}: this build has no CUDA device; use --backend cpu, or fsdp_plan --backend "
                     "cuda to plan for a GPU");
}

// Whether replicas may share the reading of weights or of a checkpoint, or the drawing of new weights,
// which a GPU does by itself.
static bool loads_slices(const fsdp_options *options, const fsdp_setup *setup, bool gpu) {
  bool resumes = strcmp(options->resume, "auto") == 0 ? options->experiment != NULL
                                                      : strcmp(options->resume, "off") != 0;
  return !gpu || setup->load_weights || resumes;
}

// The profile's messages, of its name or its files, with the option that names it.
static fsdp_status read_profile(const fsdp_options *options, fsdp_device_profile **profile,
                                fsdp_error *error) {
  fsdp_error why;
  const fsdp_status status = fsdp_profile_read(options->profile, profile, &why);
  return status ? fsdp_refuse(options, error, status, "{a profile}: %.900s", why.message) : status;
}

fsdp_status fsdp_setup_print_profile(const fsdp_options *options, char **text, fsdp_error *error) {
  fsdp_device_profile *profile;
  size_t bytes;
  *text = NULL;
  if (!options->profile) return FSDP_OK;
  fsdp_status status = read_profile(options, &profile, error);
  if (status) return status;
  FILE *out = open_memstream(text, &bytes);
  FSDP_NEED_MEMORY(out, "a device profile");
  fsdp_profile_print(profile, "", out);
  fclose(out);
  fsdp_device_profile_destroy(profile);
  return FSDP_OK;
}

// Parameters are kept as they are computed with.
static void only_evaluate(fsdp_plan_config *config) {
  config->evaluation_only = true;
  config->evaluation = config->check = config->snapshot = false;
  config->master_dtype = config->param_dtype;
}

// A GPU has its own memory; the host's is the machine's, which the ranks of a node share.
static void limit_by_gpu(const fsdp_setup_ranks *ranks, fsdp_limits *limits) {
  if (!limits->memory.bytes[FSDP_SPACE_DEVICE]) {
    limits->memory.bytes[FSDP_SPACE_DEVICE] = ranks->gpu_bytes;
    limits->place[FSDP_SPACE_DEVICE] = "the least that is free on a rank's GPU";
  }
  if (!limits->memory.bytes[FSDP_SPACE_HOST]) {
    limits->memory.bytes[FSDP_SPACE_HOST] = ranks->machine_bytes / ranks->ranks_per_node;
    limits->place[FSDP_SPACE_HOST] = "this machine's memory over its ranks";
  }
}

static int local_ranks(const fsdp_setup_ranks *ranks) {
  return ranks->ranks < ranks->ranks_per_node ? ranks->ranks : ranks->ranks_per_node;
}

// What the profile's machine has, where neither options nor the ranks' own machine say it: a GPU's memory,
// and the share of a rank in its node's.
static void limit_by_profile(const fsdp_device_profile *profile, const fsdp_setup_ranks *ranks,
                             fsdp_setup_limits *m) {
  fsdp_limits *limits = &m->limits;
  const bool known = limits->memory.shared_bytes || ranks->gpu, gpu = profile->device == FSDP_OP_CUDA;
  const int local = local_ranks(ranks);
  const fsdp_memory_limits own = fsdp_device_profile_memory(profile, local);
  if (known) return;
  if (own.shared_bytes && !limits->memory.bytes[FSDP_SPACE_DEVICE]) {
    snprintf(m->machine, sizeof m->machine, "the memory of a node of profile %s over %d rank%s",
             profile->name, local, fsdp_plural(local));
    limits->memory.shared_bytes = own.shared_bytes;
    limits->shared_place = m->machine;
  }
  if (gpu && own.bytes[FSDP_SPACE_DEVICE] && !limits->memory.bytes[FSDP_SPACE_DEVICE]) {
    snprintf(m->device, sizeof m->device, "the memory of profile %s", profile->name);
    limits->memory.bytes[FSDP_SPACE_DEVICE] = own.bytes[FSDP_SPACE_DEVICE];
  }
  if (gpu && own.bytes[FSDP_SPACE_HOST] && !limits->memory.bytes[FSDP_SPACE_HOST]) {
    snprintf(m->host, sizeof m->host, "the host memory of a node of profile %s over %d rank%s", profile->name,
             local, fsdp_plural(local));
    limits->memory.bytes[FSDP_SPACE_HOST] = own.bytes[FSDP_SPACE_HOST];
  }
}

void fsdp_setup_find_limits(const fsdp_options *options, const fsdp_setup_ranks *ranks,
                            const fsdp_device_profile *profile, fsdp_setup_limits *m) {
  snprintf(m->device, sizeof m->device, "--memory-limit %s (%s)",
           fsdp_print_bytes(options->memory_limit).text, fsdp_options_place(options, "memory-limit"));
  snprintf(m->host, sizeof m->host, "--host-memory-limit %s (%s)",
           fsdp_print_bytes(options->host_memory_limit).text,
           fsdp_options_place(options, "host-memory-limit"));
  m->limits = (fsdp_limits){.memory.bytes = {options->memory_limit, options->host_memory_limit},
                            .place = {m->device, m->host},
                            .ranks_per_machine = ranks->ranks_per_node};
  bool free_to_grow = !options->memory_limit || !options->host_memory_limit;
  if (ranks->gpu) {
    limit_by_gpu(ranks, &m->limits);
  } else if (ranks->machine_bytes && free_to_grow) {
    // On the CPU both arenas are in the machine's memory, which the ranks of a node share.
    snprintf(m->machine, sizeof m->machine, "this machine's memory over %d rank%s", ranks->ranks_per_node,
             fsdp_plural(ranks->ranks_per_node));
    m->limits.memory.shared_bytes = ranks->machine_bytes / ranks->ranks_per_node;
    m->limits.shared_place = m->machine;
  }
  if (profile) limit_by_profile(profile, ranks, m);
}

void fsdp_setup_warn_of_limits(const fsdp_options *options, const fsdp_setup_ranks *ranks,
                               const fsdp_device_profile *profile, const char *program, FILE *out) {
  static const char *const names[] = {"memory-limit", "host-memory-limit"};
  const int64_t given[] = {options->memory_limit, options->host_memory_limit};
  if (!profile) return;
  const fsdp_memory_limits own = fsdp_device_profile_memory(profile, local_ranks(ranks));
  for (int s = 0; s < FSDP_SPACE_COUNT; s++) {
    const int64_t bytes = own.shared_bytes ? own.shared_bytes : own.bytes[s];
    const bool is_typed = strcmp(fsdp_options_place(options, names[s]), "--profile") != 0;
    if (is_typed && bytes && given[s] > bytes)
      fprintf(
          out,
          "%s: warning: --%s %s (%s) is above the %s that a rank of profile %s has: what fits the limit may "
          "not fit there\n",
          program, names[s], fsdp_print_bytes(given[s]).text, fsdp_options_place(options, names[s]),
          fsdp_print_bytes(bytes).text, profile->name);
  }
}

static bool is_auto(const char *text) {
  return strcmp(text, "auto") == 0;
}

// Chooses what --recompute auto and --offload-activations auto leave open. If nothing fits, the plan that is
// made then is refused by the limit.
static fsdp_status choose_saving(const fsdp_options *options, const fsdp_limits *limits,
                                 fsdp_plan_config *config, fsdp_error *error) {
  const fsdp_saving_choice choice = {.recompute = is_auto(options->recompute),
                                     .offload = is_auto(options->offload_activations),
                                     .allowed = &limits->memory,
                                     .profile = limits->profile,
                                     .ranks_per_node = limits->ranks_per_machine};
  const char *name = choice.recompute ? "recompute" : "offload-activations";
  bool limited = limits->memory.bytes[FSDP_SPACE_DEVICE] || limits->memory.shared_bytes, found;
  if (!choice.recompute && !choice.offload) return FSDP_OK;
  if (!limited)
    return fsdp_refuse(options, error, FSDP_ERR_OPTION,
                       "{A %s} makes the plan fit a limit, and none is given: add --memory-limit SIZE", name);
  return fsdp_saving_choose(&choice, config, &found, error);
}

// Plans, and compares with the limits. *plan is made unless the options make no sense.
static fsdp_status plan_within_limits(const fsdp_options *options, const fsdp_setup_ranks *ranks,
                                      const fsdp_device_profile *profile, fsdp_plan_config config,
                                      fsdp_plan **plan, fsdp_error *error) {
  fsdp_setup_limits m = {.machine = ""};
  fsdp_setup_find_limits(options, ranks, profile, &m);
  m.limits.profile = profile;
  config.limits = fsdp_settings_arenas(options, &m.limits.memory);
  fsdp_status status = choose_saving(options, &m.limits, &config, error);
  if (status == FSDP_OK) status = fsdp_plan_create(&config, plan, error);
  return status == FSDP_OK ? fsdp_capacity_check(*plan, &m.limits, error) : status;
}

// Room for all that a rank's experts can be sent takes the fewest launches. Where that does not fit, the most
// that does: more waves take time that grows as rows are beyond the first.
static fsdp_status plan_with_capacity(const fsdp_options *options, const fsdp_setup_ranks *ranks,
                                      const fsdp_device_profile *profile, fsdp_plan_config config,
                                      fsdp_plan **plan, fsdp_error *error) {
  static const double capacities[] = {2, 1.25, 1};
  fsdp_status status = plan_within_limits(options, ranks, profile, config, plan, error);
  const bool chosen = fsdp_options_given(options, "expert-capacity") || !config.model.experts;
  if (status != FSDP_ERR_CAPACITY || chosen || fsdp_mesh_size(&config.mesh, FSDP_AXIS_EXPERT) == 1)
    return status;
  const fsdp_error all = *error;
  for (int i = 0; i < 3 && status == FSDP_ERR_CAPACITY; i++) {
    fsdp_plan *smaller = NULL;
    *error = (fsdp_error){0};
    config.expert_capacity = capacities[i];
    status = plan_within_limits(options, ranks, profile, config, &smaller, error);
    fsdp_plan_destroy(status == FSDP_OK ? *plan : smaller);
    if (status == FSDP_OK) *plan = smaller;
  }
  if (status != FSDP_OK) *error = all;
  return status == FSDP_OK ? FSDP_OK : FSDP_ERR_CAPACITY;
}

static int64_t snapshot_bytes(const fsdp_plan *plan) {
  int64_t bytes = 0;
  for (int u = 0; u < plan->units->count; u++) {
    for (int slot = 0; slot < plan->optimizer->slot_count; slot++) {
      int tensor = plan->unit_state[u].snapshot[slot];
      if (tensor >= 0) bytes += plan->program->tensors[tensor].bytes;
    }
  }
  return bytes;
}

static fsdp_status check_multiprocessors(const fsdp_options *options, const fsdp_plan_backend *backend,
                                         fsdp_error *error) {
  if (!options->multiprocessors || backend->device == FSDP_OP_CUDA) return FSDP_OK;
  return fsdp_refuse(options, error, FSDP_ERR_OPTION,
                     "{A multiprocessors} is of a GPU, and this plan is for a CPU: leave it out");
}

static fsdp_status check_separator(const fsdp_options *options, const fsdp_model_config *model,
                                   fsdp_error *error) {
  if (options->document_separator < model->vocab_size) return FSDP_OK;
  return fsdp_refuse(options, error, FSDP_ERR_OPTION,
                     "{A document-separator} is no token of the model, whose vocabulary is %lld: give the "
                     "token that ends a document, or leave it out",
                     (long long)model->vocab_size);
}

static fsdp_status check_attention(const fsdp_options *options, const fsdp_plan_backend *backend,
                                   fsdp_error *error) {
  if (options->attention == FSDP_ATTENTION_AUTO || backend->device == FSDP_OP_CUDA) return FSDP_OK;
  return fsdp_refuse(options, error, FSDP_ERR_OPTION,
                     "{A attention} is one of a GPU's kernels, and this plan is for a CPU, which has one: "
                     "leave it out, or use --backend cuda");
}

// What divides routed experts where there are none; sharding rules say themselves what lies over the axis.
static fsdp_status check_experts(const fsdp_options *options, const fsdp_model_config *model,
                                 fsdp_error *error) {
  const bool placed = options->sharding || options->op_strategies;
  const char *divides = options->expert_blocks > 1                ? "expert-blocks"
                        : !placed && options->expert_parallel > 1 ? "expert-parallel"
                                                                  : NULL;
  if (model->experts) return FSDP_OK;
  if (divides)
    return fsdp_refuse(options, error, FSDP_ERR_OPTION,
                       "{A %s} is of models with routed experts, and this has none: leave it out", divides);
  if (placed || fsdp_mesh_size(&options->mesh_axes, FSDP_AXIS_EXPERT) == 1) return FSDP_OK;
  return fsdp_refuse(options, error, FSDP_ERR_OPTION,
                     "{A mesh} has an axis for routed experts, and the model has none: use fsdp in the place "
                     "of expert");
}

// A CPU's profile was measured with as many threads as a rank has cores.
static fsdp_status check_threads(const fsdp_options *options, const fsdp_setup_ranks *ranks,
                                 const fsdp_device_profile *profile, fsdp_error *error) {
  if (!options->threads || !profile || profile->device != FSDP_OP_CPU || !profile->processors) return FSDP_OK;
  const int local = local_ranks(ranks);
  const int measured = profile->processors > local ? profile->processors / local : 1;
  if (options->threads == measured) return FSDP_OK;
  return fsdp_refuse(options, error, FSDP_ERR_OPTION,
                     "{A threads}: profile %s has %d processor%s a node, which is %d thread%s for each of %d "
                     "rank%s, and no step with another number was measured: leave --threads out, or measure "
                     "the machine with as many processors (taskset) and use that profile",
                     profile->name, profile->processors, fsdp_plural(profile->processors), measured,
                     fsdp_plural(measured), local, fsdp_plural(local));
}

static fsdp_status read_dropout(const fsdp_options *options, const fsdp_model_config *model,
                                fsdp_dropout *rates, fsdp_error *error) {
  char *end;
  if (!strcmp(options->dropout, "config")) {
    if (fsdp_model_dropout(model, rates)) return FSDP_OK;
    return fsdp_refuse(options, error, FSDP_ERR_OPTION,
                       "{A dropout}: configurations of this model's type have no rates here: give a number, "
                       "as in --dropout 0.1");
  }
  const double rate = strtod(options->dropout, &end);
  if (end == options->dropout || *end || !(rate >= 0 && (float)rate < 1))
    return fsdp_refuse(
        options, error, FSDP_ERR_OPTION,
        "{A dropout}: is neither a rate of 0 or more and below 1 nor \"config\"; use one of these");
  *rates = (fsdp_dropout){(float)rate, (float)rate, (float)rate};
  return FSDP_OK;
}

// --dropout and --attention-dropout, which may ask for those of the model's configuration.
static fsdp_status choose_dropout(const fsdp_options *options, const fsdp_model_config *model,
                                  fsdp_dropout *rates, fsdp_error *error) {
  *rates = (fsdp_dropout){0};
  const fsdp_status status = options->dropout ? read_dropout(options, model, rates, error) : FSDP_OK;
  if (status == FSDP_OK && fsdp_options_given(options, "attention-dropout"))
    rates->attention = (float)options->attention_dropout;
  return status;
}

fsdp_status fsdp_setup_configure(const fsdp_options *options, fsdp_program_kind program,
                                 const fsdp_setup_ranks *ranks, fsdp_setup *setup, fsdp_plan_config *out,
                                 fsdp_error *error) {
  *setup = (fsdp_setup){0};
  fsdp_plan_backend *backend = &setup->backend;
  fsdp_status status = FSDP_OK;
  if (options->profile) status = read_profile(options, &setup->profile, error);
  if (status == FSDP_OK) status = check_device(options, program, ranks, error);
  if (status == FSDP_OK)
    status = fsdp_settings_backend(options, program == FSDP_PROGRAM_PLAN, ranks->gpu, setup->profile, backend,
                                   error);
  if (status == FSDP_OK) status = check_multiprocessors(options, backend, error);
  if (status == FSDP_OK) status = check_attention(options, backend, error);
  if (status == FSDP_OK) status = check_threads(options, ranks, setup->profile, error);
  if (status != FSDP_OK) return status;
  fsdp_plan_config config = fsdp_settings_config(options, ranks, setup->profile, backend);
  if (backend->device == FSDP_OP_CUDA && config.param_dtype == FSDP_F32 && config.reduce_dtype == FSDP_BF16)
    return fsdp_refuse(options, error, FSDP_ERR_OPTION,
                       "{A reduce-dtype} with {A param-dtype}: a GPU's fp32 gemms give fp32 gradients; use "
                       "--param-dtype bf16, or --reduce-dtype fp32");
  status = fsdp_settings_saving(options, &config.saving, error);
  if (status == FSDP_OK) status = fsdp_setup_read_model(options, setup, &config.model, error);
  if (status == FSDP_OK) status = check_separator(options, &config.model, error);
  if (status == FSDP_OK) status = check_experts(options, &config.model, error);
  config.exchange = loads_slices(options, setup, backend->device == FSDP_OP_CUDA);
  if (status == FSDP_OK) status = fsdp_mesh_choose(options, ranks, &config.mesh, error);
  if (status == FSDP_OK) status = fsdp_sharding_read(options, &setup->sharding, error);
  config.sharding = setup->sharding;
  if (status == FSDP_OK) status = fsdp_strategies_read(options, &setup->strategies, error);
  config.op_strategies = setup->strategies;
  if (program == FSDP_PROGRAM_EVAL) only_evaluate(&config);
  if (status == FSDP_OK) status = fsdp_propagate_mesh(options, ranks, &config, error);
  config.documents = fsdp_documents_choose(options);
  config.loss_of_documents = options->loss_mean == FSDP_LOSS_MEAN_DOCUMENTS;
  if (status == FSDP_OK && program != FSDP_PROGRAM_EVAL)
    status = choose_dropout(options, &config.model, &config.dropout, error);
  config.wrap = fsdp_settings_wrap(options, setup->sharding, &config.model);
  if (status == FSDP_OK && !options->search) status = fsdp_settings_check_experts(options, &config, error);
  *out = config;
  return status;
}

fsdp_status fsdp_setup_create(const fsdp_options *options, fsdp_program_kind program,
                              const fsdp_setup_ranks *ranks, fsdp_setup *setup, fsdp_error *error) {
  fsdp_plan_config config;
  fsdp_status status = fsdp_setup_configure(options, program, ranks, setup, &config, error);
  if (status != FSDP_OK) return status;
  status = plan_with_capacity(options, ranks, setup->profile, config, &setup->plan, error);
  if (status != FSDP_ERR_CAPACITY || !config.snapshot) return status;
  // Saving needs no snapshot: it can wait for the disk.
  int64_t snapshot = snapshot_bytes(setup->plan);
  fsdp_plan_destroy(setup->plan);
  config.snapshot = false;
  *error = (fsdp_error){0}; // the first plan's, which ranks would share
  status = plan_with_capacity(options, ranks, setup->profile, config, &setup->plan, error);
  if (status != FSDP_OK || options->ckpt_async == FSDP_CKPT_ASYNC_AUTO) return status;
  return fsdp_refuse(options, error, FSDP_ERR_CAPACITY,
                     "{A ckpt-async} needs %s per rank for the snapshot, which does not fit beside the rest: "
                     "use --ckpt-async off, which saves directly from the state",
                     fsdp_print_bytes(snapshot).text);
}

void fsdp_setup_destroy(fsdp_setup *setup) {
  fsdp_plan_destroy(setup->plan);
  fsdp_device_profile_destroy(setup->profile);
  fsdp_sharding_destroy(setup->sharding);
  fsdp_strategies_destroy(setup->strategies);
  *setup = (fsdp_setup){0};
}
