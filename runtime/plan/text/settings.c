#include "runtime/plan/text/settings.h"

#include "models/family.h"
#include "runtime/base/check.h"
#include "runtime/base/choices.h"
#include "runtime/base/text.h"
#include "runtime/plan/price/price.h"

#include <stdio.h>
#include <string.h>

// ---- Checks

static fsdp_status check_mesh(const fsdp_options *o, fsdp_error *error) {
  const fsdp_strategy strategy = (fsdp_strategy)o->strategy;
  const bool open = (o->search || o->auto_plan) && !fsdp_options_given(o, "strategy");
  fsdp_error why;
  if (!o->mesh_axes.count || o->sharding || o->op_strategies) return FSDP_OK; // these say what lies where
  const fsdp_status status = fsdp_plan_check_mesh(&o->mesh_axes, open ? NULL : &strategy, &why);
  return status ? fsdp_refuse(o, error, status, "{A mesh}: %.900s", why.message) : FSDP_OK;
}

bool fsdp_settings_sharding_is(const fsdp_options *o, const char *preset) {
  return o->sharding && !strcmp(o->sharding, preset);
}

// The short forms stand for an axis of the mesh and what lies over it, which the mesh and rules may say
// themselves.
static fsdp_status check_short_form(const fsdp_options *o, const char *name, int64_t size, const char *axis,
                                    fsdp_error *error) {
  int mesh_size = fsdp_mesh_size(&o->mesh_axes, axis);
  if (!fsdp_options_given(o, name)) return FSDP_OK;
  if (fsdp_mesh_find(&o->mesh_axes, axis) >= 0 && mesh_size != size)
    return fsdp_refuse(o, error, FSDP_ERR_OPTION,
                       "{A %s} and %s=%d of {A mesh} do not agree: leave one of them out", name, axis,
                       mesh_size);
  // fsdp places the batch over expert and, by sequence, over context, but nothing over tensor.
  bool placed = fsdp_settings_sharding_is(o, "fsdp-tp") ||
                (fsdp_settings_sharding_is(o, "fsdp") && strcmp(axis, FSDP_AXIS_TENSOR) != 0);
  if (size == 1 || !o->sharding || placed) return FSDP_OK;
  char remedy[96] = "use --sharding fsdp-tp, or leave one of them out";
  if (!fsdp_settings_sharding_is(o, "fsdp") && !fsdp_settings_sharding_is(o, "fsdpv2"))
    snprintf(remedy, sizeof remedy, "with a file, give the axis its size in --mesh, as in %s=%lld", axis,
             (long long)size);
  return fsdp_refuse(o, error, FSDP_ERR_OPTION,
                     "{A %s} and {A sharding} both say what lies over the axis %s: %s", name, axis, remedy);
}

static fsdp_status check_short_forms(const fsdp_options *o, fsdp_error *error) {
  fsdp_status status = check_short_form(o, "tensor-parallel", o->tensor_parallel, FSDP_AXIS_TENSOR, error);
  if (!status)
    status = check_short_form(o, "context-parallel", o->context_parallel, FSDP_AXIS_CONTEXT, error);
  if (!status) status = check_short_form(o, "expert-parallel", o->expert_parallel, FSDP_AXIS_EXPERT, error);
  bool alone =
      !fsdp_options_given(o, "sequence-parallel") || !o->sharding || fsdp_settings_sharding_is(o, "fsdp-tp");
  if (status || alone) return status;
  return fsdp_refuse(
      o, error, FSDP_ERR_OPTION,
      "{A sequence-parallel} and {A sharding} both say how outputs lie: leave one of them out");
}

fsdp_status fsdp_settings_check(const fsdp_options *o, fsdp_error *error) {
  fsdp_status status = check_mesh(o, error);
  if (!status) status = check_short_forms(o, error);
  if (status) return status;
  if (o->ranks_per_node > o->ranks)
    return fsdp_refuse(o, error, FSDP_ERR_OPTION, "{A ranks-per-node} is more than {A ranks}");
  if (o->batch * o->seq > INT32_MAX)
    return fsdp_refuse(o, error, FSDP_ERR_OPTION,
                       "{A batch-size} times {A seq-length} is more than 2147483647 tokens: use less");
  return FSDP_OK;
}

// A number that nothing would read is a mistake.
fsdp_status fsdp_settings_check_experts(const fsdp_options *o, const fsdp_plan_config *config,
                                        fsdp_error *error) {
  if (config->expert_capacity <= 0 || fsdp_mesh_size(&config->mesh, FSDP_AXIS_EXPERT) > 1) return FSDP_OK;
  return fsdp_refuse(o, error, FSDP_ERR_OPTION,
                     "{A expert-capacity} without ranks that divide experts: a rank then has as many routed "
                     "rows whatever the routing; leave it out, or add --expert-parallel N");
}

// ---- The configuration of a plan

fsdp_status fsdp_settings_backend(const fsdp_options *o, bool only_plans, bool has_gpu,
                                  const fsdp_device_profile *profile, fsdp_plan_backend *backend,
                                  fsdp_error *error) {
  const int given = o->backend;
  bool gpu = has_gpu || given == FSDP_BACKEND_CUDA;
  if (only_plans && profile && given == FSDP_BACKEND_AUTO) gpu = profile->device == FSDP_OP_CUDA;
  *backend = gpu ? *fsdp_plan_backend_cuda() : *fsdp_plan_backend_cpu();
  if (!profile) return FSDP_OK;
  if (profile->device != backend->device) // prices are of the device that is planned for
    return fsdp_refuse(o, error, FSDP_ERR_OPTION, "{A profile} is of a %s, and %s a %s: %s",
                       gpu ? "CPU" : "GPU", only_plans ? "the plan is for" : "this run is on",
                       gpu ? "GPU" : "CPU",
                       only_plans ? "leave --backend out, or give another profile"
                                  : "give its own profile, which fsdp_profile writes, or none");
  *backend = fsdp_pricing_backend(profile);
  return FSDP_OK;
}

fsdp_plan_config fsdp_settings_config(const fsdp_options *o, const fsdp_setup_ranks *ranks,
                                      const fsdp_device_profile *profile, const fsdp_plan_backend *backend) {
  bool gpu = backend->device == FSDP_OP_CUDA;
  int param_dtype = o->param_dtype == FSDP_DTYPE_AUTO ? (gpu ? FSDP_BF16 : FSDP_F32) : o->param_dtype;
  bool saves = o->experiment && o->ckpt_freq > 0;
  bool keeps_gradients = o->strategy == FSDP_ZERO1 && !fsdp_options_given(o, "accumulate");
  fsdp_op_gpu target = ranks->target;
  if (!target.capability && profile) target = fsdp_device_profile_gpu(profile);
  if (o->multiprocessors) target.multiprocessors = (int)o->multiprocessors;
  target.attention = (fsdp_attention_kernel)o->attention;
  target.gemm_multiprocessors = (int)o->gemm_multiprocessors;
  return (fsdp_plan_config){
      .batch = o->batch,
      .seq = o->seq,
      .micro_batches = (int)o->grad_accum,
      .strategy = (fsdp_strategy)o->strategy,
      .sequence_parallel = o->sequence_parallel,
      .expert_capacity = o->expert_capacity,
      .expert_blocks = (int)o->expert_blocks,
      .imbalance = o->imbalance,
      .cpu_offload = o->cpu_offload,
      .prefetch = (int)o->prefetch,
      .accumulate = keeps_gradients ? FSDP_ACCUMULATE_LOCAL : (fsdp_accumulate)o->accumulate,
      .param_dtype = (fsdp_dtype)param_dtype,
      .reduce_dtype = (fsdp_dtype)o->reduce_dtype,
      .master_dtype = (fsdp_dtype)o->master_dtype,
      .moment_dtype = (fsdp_dtype)o->moment_dtype,
      .grad_clip = (float)o->grad_clip,
      .norm_limit = (float)o->skip_grad_norm,
      .hyper = {.beta1 = o->beta1,
                .beta2 = o->beta2,
                .eps = (float)o->eps,
                .weight_decay = (float)o->weight_decay,
                .decay = (fsdp_decay)o->decay,
                .balance_rate = (float)o->router_bias_rate},
      .poison = o->poison,
      .evaluation = fsdp_options_evaluate(o) || o->sample_every > 0,
      .logits = o->prompt || o->prompt_tokens,
      .check = saves || o->check_replicas > 0,
      .snapshot = saves && o->ckpt_async != FSDP_CKPT_ASYNC_OFF,
      .backend = backend,
      .gpu = target,
      .copies_gathers =
          gpu && o->nccl_register != FSDP_NCCL_REGISTER_OFF && o->nccl_ctas == FSDP_NCCL_CTAS_AUTO,
  };
}

fsdp_wrap_policy fsdp_settings_wrap(const fsdp_options *o, const fsdp_sharding *sharding,
                                    const fsdp_model_config *model) {
  fsdp_wrap_policy policy = {.kind = FSDP_WRAP_SIZE, .numel = o->numel_to_wrap};
  // fsdpv2 wraps each decoder layer and leaves the rest to the root.
  if (sharding && sharding->preset == FSDP_SHARDING_FSDPV2 && !fsdp_options_given(o, "wrap"))
    return (fsdp_wrap_policy){.kind = FSDP_WRAP_MODULE, .classes = model->family->block_class};
  bool known = fsdp_value_wrap(o->wrap, &policy);
  FSDP_CHECK(known, "--wrap %s", o->wrap);
  return policy;
}

fsdp_status fsdp_settings_saving(const fsdp_options *o, fsdp_saving *saving, fsdp_error *error) {
  const struct {
    const char *name, *text;
    fsdp_fate fate;
  } lists[] = {{"recompute", o->recompute, FSDP_FATE_RECOMPUTE},
               {"offload-activations", o->offload_activations, FSDP_FATE_OFFLOAD}};
  fsdp_status status = FSDP_OK;
  for (int i = 0; i < 2 && !status; i++) {
    char option[FSDP_SAVING_OPTION_BYTES];
    snprintf(option, sizeof option, "--%s (%s)", lists[i].name, fsdp_options_place(o, lists[i].name));
    if (strcmp(lists[i].text, "auto") != 0)
      status = fsdp_saving_parse(lists[i].text, option, lists[i].fate, saving, error);
  }
  return status;
}

fsdp_memory_limits fsdp_settings_arenas(const fsdp_options *o, const fsdp_memory_limits *limits) {
  fsdp_memory_limits result = *limits;
  result.room_bytes = result.bytes[FSDP_SPACE_DEVICE];
  if (fsdp_options_given(o, "memory-margin"))
    result.room_bytes = fsdp_search_without_margin(result.room_bytes, o->memory_margin);
  return result;
}

// ---- Search

// Settings that fix a field of the search. `auto` leaves what it stands for open.
static const struct {
  const char *name;
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

static bool is_fixed(const fsdp_options *o, const char *name) {
  if (!fsdp_options_given(o, name)) return false;
  if (strcmp(name, "recompute") == 0) return strcmp(o->recompute, "auto") != 0;
  if (strcmp(name, "offload-activations") == 0) return strcmp(o->offload_activations, "auto") != 0;
  return true;
}

static int fixed_size(const fsdp_options *o, const char *name, int64_t size) {
  return fsdp_options_given(o, name) ? (int)size : 0;
}

fsdp_status fsdp_settings_search(const fsdp_options *o, const fsdp_setup_ranks *ranks,
                                 const fsdp_device_profile *profile, fsdp_search_config *search,
                                 fsdp_error *error) {
  fsdp_status status = fsdp_pricing_check(&search->base, profile, error);
  if (status) return status;
  int parts; // as without a search
  status = fsdp_plan_count_batch_parts(&search->base, &parts, error);
  if (status && (!o->global_batch || fsdp_options_given(o, "mesh"))) return status;
  search->profile = profile;
  search->ranks = ranks->ranks;
  search->ranks_per_node = ranks->ranks_per_node;
  search->global_batch = o->global_batch ? o->global_batch : o->batch * o->grad_accum * parts;
  for (int i = 0; i < FIELDS; i++) search->fixed[fields[i].field] |= is_fixed(o, fields[i].name);
  if (o->sharding) search->fixed[FSDP_SEARCH_STRATEGY] = true; // rules say what is sharded
  search->fixed_tensor = fixed_size(o, "tensor-parallel", o->tensor_parallel);
  search->fixed_context = fixed_size(o, "context-parallel", o->context_parallel);
  search->fixed_expert = fixed_size(o, "expert-parallel", o->expert_parallel);
  search->margin = o->memory_margin;
  return FSDP_OK;
}

typedef struct visiting {
  fsdp_setting_visit *visit;
  void *context;
} visiting;

static void visit_number(const visiting *v, fsdp_search_field field, const char *name, int64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)value);
  v->visit(v->context, field, name, text);
}

void fsdp_settings_of_plan(const fsdp_search_config *search, const fsdp_plan_config *plan,
                           fsdp_setting_visit *visit, void *context) {
  char mesh[FSDP_MESH_TEXT_BYTES], rules[FSDP_SAVING_TEXT_BYTES], wrap[256], margin[32];
  const visiting v = {visit, context};
  visit(context, FSDP_SEARCH_MESH, "mesh", fsdp_mesh_print(&plan->mesh, ",", mesh));
  visit(context, FSDP_SEARCH_STRATEGY, "strategy", fsdp_strategy_name(plan->strategy));
  visit(context, FSDP_SEARCH_SEQUENCE_PARALLEL, "sequence-parallel", plan->sequence_parallel ? "on" : "off");
  visit(context, FSDP_SEARCH_WRAP, "wrap", fsdp_value_print_wrap(&plan->wrap, wrap, sizeof wrap));
  if (plan->wrap.kind == FSDP_WRAP_SIZE)
    visit_number(&v, FSDP_SEARCH_WRAP, "numel-to-wrap", plan->wrap.numel);
  if (fsdp_model_expert_layers(&plan->model))
    visit_number(&v, FSDP_SEARCH_EXPERT_BLOCKS, "expert-blocks", plan->expert_blocks);
  visit(context, FSDP_SEARCH_RECOMPUTE, "recompute",
        fsdp_saving_print(&plan->saving, FSDP_FATE_RECOMPUTE, rules));
  visit(context, FSDP_SEARCH_OFFLOAD_ACTIVATIONS, "offload-activations",
        fsdp_saving_print(&plan->saving, FSDP_FATE_OFFLOAD, rules));
  visit(context, FSDP_SEARCH_CPU_OFFLOAD, "cpu-offload", plan->cpu_offload ? "on" : "off");
  visit_number(&v, FSDP_SEARCH_PREFETCH, "prefetch", plan->prefetch);
  visit_number(&v, FSDP_SEARCH_BATCH, "batch-size", plan->batch);
  visit_number(&v, FSDP_SEARCH_MICRO_BATCHES, "grad-accum", plan->micro_batches);
  visit(context, FSDP_SEARCH_ACCUMULATE, "accumulate",
        plan->accumulate == FSDP_ACCUMULATE_LOCAL ? "local" : "reduce");
  if (search->limit_bytes[FSDP_SPACE_DEVICE]) // plans are packed into what the margin leaves
    visit(context, FSDP_SEARCH_FIELD_COUNT, "memory-margin",
          fsdp_print_real(search->margin, margin, sizeof margin));
}
