// runtime/plan/fsdp_plan.h: settings as texts, to plans, prices and searches as JSON.
#include "models/family.h"
#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "runtime/plan/fsdp_plan.h"
#include "runtime/plan/search/evaluate.h"
#include "runtime/plan/search/search.h"
#include "runtime/plan/text/plan_json.h"
#include "runtime/plan/text/planner_settings.h"
#include "runtime/plan/text/profile_text.h"
#include "runtime/plan/text/sharding_text.h"
#include "runtime/plan/text/value.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// Of the device's memory, as --search leaves it free.
#define SEARCH_MARGIN 0.03

struct fsdp_planner {
  fsdp_settings settings; // with the model and the sharding
  bool has_model;
  fsdp_device_profile *profile;
  fsdp_sharding *sharding;
  fsdp_plan_backend backend; // of the last plan
  fsdp_error error;
};

fsdp_planner *fsdp_planner_create(void) {
  fsdp_planner *planner = fsdp_alloc_zeroed(1, sizeof *planner);
  planner->settings = fsdp_settings_create();
  return planner;
}

void fsdp_planner_destroy(fsdp_planner *planner) {
  if (!planner) return;
  fsdp_settings_release(&planner->settings);
  fsdp_device_profile_destroy(planner->profile);
  fsdp_sharding_destroy(planner->sharding);
  free(planner);
}

const char *fsdp_planner_error(const fsdp_planner *planner) {
  return planner->error.message;
}

void fsdp_planner_free(char *json) {
  free(json);
}

// ---- Settings

// A document's text has a character that no name has.
static bool is_document(const char *text) {
  return strpbrk(text, "\n{:") != NULL;
}

static fsdp_status set_model(fsdp_planner *planner, const char *text) {
  fsdp_model_config model;
  fsdp_status status;
  json_error_t where;
  if (!is_document(text)) {
    status = fsdp_model_preset(text, &model, &planner->error);
  } else {
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &where);
    if (!json_is_object(root))
      status = fsdp_fail(&planner->error, FSDP_ERR_INPUT,
                         "model: line %d: %s; give a preset's name or the text of a config.json", where.line,
                         root ? "not a JSON object" : where.text);
    else
      status = fsdp_model_read(root, "model", &model, &planner->error);
    json_decref(root);
  }
  if (status) return status;
  planner->settings.plan.model = model;
  planner->has_model = true;
  return FSDP_OK;
}

static fsdp_status set_profile(fsdp_planner *planner, const char *text) {
  fsdp_device_profile *profile;
  const bool document = is_document(text);
  fsdp_status status =
      fsdp_profile_read_text(document ? "profile" : text, document ? text : NULL, &profile, &planner->error);
  if (status) return status;
  fsdp_device_profile_destroy(planner->profile);
  planner->profile = profile;
  return FSDP_OK;
}

static fsdp_status set_sharding(fsdp_planner *planner, const char *text) {
  fsdp_sharding *sharding = fsdp_alloc_zeroed(1, sizeof *sharding);
  fsdp_status status = FSDP_OK;
  if (!fsdp_sharding_find_preset(text, &sharding->preset)) {
    const fsdp_yaml_source source = {.path = "sharding",
                                     .text = text,
                                     .text_bytes = strlen(text),
                                     .what = "rules, or one of the presets fsdp, fsdp-tp and fsdpv2",
                                     .bad = FSDP_ERR_INPUT};
    status = fsdp_sharding_read_rules(sharding, &source, fsdp_yaml_visit, &planner->error);
  }
  fsdp_sharding_destroy(status ? sharding : planner->sharding);
  if (!status) planner->settings.plan.sharding = planner->sharding = sharding;
  return status;
}

static fsdp_status add_rule(fsdp_planner *planner, const char *text) {
  if (planner->sharding)
    return fsdp_sharding_read_assignment(planner->sharding, text, "set", &planner->error);
  return fsdp_fail(&planner->error, FSDP_ERR_OPTION, "shard '%.200s': set `sharding` first", text);
}

int fsdp_planner_set(fsdp_planner *planner, const char *name, const char *text) {
  static const struct {
    const char *name;
    fsdp_status (*set)(fsdp_planner *, const char *);
  } documents[] = {
      {"model", set_model}, {"profile", set_profile}, {"sharding", set_sharding}, {"shard", add_rule}};
  planner->error = (fsdp_error){0};
  for (size_t i = 0; i < sizeof documents / sizeof *documents; i++)
    if (strcmp(name, documents[i].name) == 0) return (int)documents[i].set(planner, text);
  return (int)fsdp_settings_set(&planner->settings, name, text, &planner->error);
}

// ---- The configuration of a plan

static fsdp_status choose_backend(fsdp_planner *planner) {
  const fsdp_device_profile *profile = planner->profile;
  const int64_t given = planner->settings.backend;
  const bool gpu = given < 0 ? profile && profile->device == FSDP_OP_CUDA : given == FSDP_OP_CUDA;
  planner->backend = gpu ? *fsdp_plan_backend_cuda() : *fsdp_plan_backend_cpu();
  if (profile && profile->device != planner->backend.device)
    return fsdp_fail(
        &planner->error, FSDP_ERR_OPTION,
        "backend %s: the profile is of another device; leave backend out, or set another profile",
        planner->backend.name);
  if (profile) planner->backend = fsdp_pricing_backend(profile);
  return FSDP_OK;
}

static fsdp_status read_saving(fsdp_planner *planner, fsdp_saving *saving) {
  const fsdp_settings *s = &planner->settings;
  fsdp_status status =
      fsdp_saving_parse(s->recompute, "recompute", FSDP_FATE_RECOMPUTE, saving, &planner->error);
  if (status) return status;
  return fsdp_saving_parse(s->offload_activations, "offload-activations", FSDP_FATE_OFFLOAD, saving,
                           &planner->error);
}

static void set_wrap(const fsdp_planner *planner, fsdp_plan_config *config) {
  const fsdp_settings *s = &planner->settings;
  bool known = fsdp_value_wrap(s->wrap, &config->wrap);
  FSDP_CHECK(known, "wrap %s", s->wrap);
  const bool by_blocks = planner->sharding && planner->sharding->preset == FSDP_SHARDING_FSDPV2;
  if (by_blocks && !s->fixed[FSDP_SEARCH_WRAP])
    config->wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_MODULE, .classes = config->model.family->block_class};
}

// Where no limit is given, the profile's machine is the limit.
static void limit_by_profile(const fsdp_planner *planner, fsdp_memory_limits *limits) {
  const int64_t ranks = planner->settings.ranks;
  const int node = fsdp_settings_ranks_per_node(&planner->settings), local = ranks < node ? (int)ranks : node;
  const fsdp_memory_limits own = fsdp_device_profile_memory(planner->profile, local);
  if (!limits->bytes[FSDP_SPACE_DEVICE]) {
    limits->bytes[FSDP_SPACE_DEVICE] = limits->room_bytes = own.bytes[FSDP_SPACE_DEVICE];
    limits->shared_bytes = own.shared_bytes;
  }
  if (!limits->bytes[FSDP_SPACE_HOST]) limits->bytes[FSDP_SPACE_HOST] = own.bytes[FSDP_SPACE_HOST];
}

// As fsdp_plan makes it of its options (launcher/setup).
static fsdp_status configure(fsdp_planner *planner, fsdp_plan_config *config) {
  const fsdp_settings *s = &planner->settings;
  if (!planner->has_model)
    return fsdp_fail(&planner->error, FSDP_ERR_OPTION,
                     "no model: set `model` to a preset's name or the text of a config.json");
  fsdp_status status = choose_backend(planner);
  if (status) return status;
  const bool gpu = planner->backend.device == FSDP_OP_CUDA;
  *config = s->plan;
  config->backend = &planner->backend;
  config->grad_clip = (float)s->grad_clip;
  config->exchange = !gpu;
  config->copies_gathers = gpu;
  config->limits.room_bytes = config->limits.bytes[FSDP_SPACE_DEVICE];
  if (s->plan.param_dtype == FSDP_DTYPE_COUNT) config->param_dtype = gpu ? FSDP_BF16 : FSDP_F32;
  if (s->plan.strategy == FSDP_ZERO1 && !s->fixed[FSDP_SEARCH_ACCUMULATE])
    config->accumulate = FSDP_ACCUMULATE_LOCAL;
  if (planner->profile) config->gpu = fsdp_device_profile_gpu(planner->profile);
  if (planner->profile) limit_by_profile(planner, &config->limits);
  if (s->memory_margin >= 0)
    config->limits.room_bytes = fsdp_search_without_margin(config->limits.room_bytes, s->memory_margin);
  set_wrap(planner, config);
  if (planner->sharding) planner->sharding->sequence_parallel = s->plan.sequence_parallel;
  status = read_saving(planner, &config->saving);
  return status ? status : fsdp_settings_mesh(s, &config->mesh, &planner->error);
}

static char *print(json_t *root) {
  char *text = json_dumps(root, JSON_INDENT(1));
  FSDP_NEED_MEMORY(text, "a JSON text");
  json_decref(root);
  return text;
}

static void put(json_t *object, const char *key, json_t *value) {
  FSDP_CHECK(value && json_object_set_new(object, key, value) == 0, "JSON member %s", key);
}

// ---- Plan and price

static fsdp_status make_plan(fsdp_planner *planner, fsdp_plan **plan) {
  fsdp_plan_config config;
  planner->error = (fsdp_error){0};
  fsdp_status status = configure(planner, &config);
  return status ? status : fsdp_plan_create(&config, plan, &planner->error);
}

static bool fits(const fsdp_plan *plan) {
  int64_t needed[FSDP_SPACE_COUNT];
  fsdp_need_of(plan, needed);
  return fsdp_excess_of(&plan->config.limits, needed, NULL) == 0;
}

char *fsdp_planner_plan(fsdp_planner *planner) {
  fsdp_plan *plan;
  if (make_plan(planner, &plan)) return NULL;
  json_t *root = fsdp_plan_json(plan);
  put(root, "fits", json_boolean(fits(plan)));
  fsdp_plan_destroy(plan);
  return print(root);
}

static json_t *number_or_null(double value) {
  return value > 0 ? json_real(value) : json_null();
}

static json_t *price_json(const fsdp_pricing *pricing, const fsdp_step_price *price) {
  json_t *root = json_object(), *work = json_object();
  put(root, "profile", json_string(pricing->profile->name));
  put(root, "step_ms", json_real(1e3 * price->step_s));
  put(root, "tokens_per_s", json_real(fsdp_plan_step_tokens(pricing->plan) / price->step_s));
  put(root, "mfu", number_or_null(fsdp_pricing_mfu(pricing, price->step_s, FSDP_FLOPS_CAUSAL)));
  for (int k = 0; k < FSDP_PRICE_KIND_COUNT; k++)
    put(work, fsdp_price_kind_name((fsdp_price_kind)k), json_real(1e3 * price->kind_s[k]));
  put(root, "work_ms", work);
  put(root, "exposed_ms",
      json_pack("{s:f, s:f, s:f, s:f}", "communication", 1e3 * price->comm_s, "copies_up", 1e3 * price->h2d_s,
                "copies_down", 1e3 * price->d2h_s, "other", 1e3 * price->other_s));
  return root;
}

static bool has_profile(fsdp_planner *planner) {
  planner->error = (fsdp_error){0};
  if (planner->profile) return true;
  fsdp_fail(&planner->error, FSDP_ERR_OPTION,
            "no machine: set `profile` to a shipped profile's name or a device profile's text");
  return false;
}

char *fsdp_planner_price(fsdp_planner *planner) {
  fsdp_plan *plan;
  fsdp_pricing pricing;
  if (!has_profile(planner) || make_plan(planner, &plan)) return NULL;
  json_t *root = NULL;
  if (!fsdp_pricing_create(plan, planner->profile, fsdp_settings_ranks_per_node(&planner->settings), &pricing,
                           &planner->error)) {
    fsdp_simulation *simulation = fsdp_simulation_create(&pricing);
    fsdp_step_price price;
    fsdp_simulation_run(simulation, &price);
    root = price_json(&pricing, &price);
    fsdp_step_price_release(&price);
    fsdp_simulation_destroy(simulation);
  }
  fsdp_plan_destroy(plan);
  return root ? print(root) : NULL;
}

// ---- Search

static fsdp_status make_search(fsdp_planner *planner, fsdp_search_config *search) {
  const fsdp_settings *s = &planner->settings;
  const fsdp_device_profile *profile = planner->profile;
  const double margin = s->memory_margin < 0 ? SEARCH_MARGIN : s->memory_margin;
  *search = (fsdp_search_config){.profile = profile,
                                 .ranks = (int)s->ranks,
                                 .ranks_per_node = fsdp_settings_ranks_per_node(s),
                                 .fixed_tensor = s->tensor_parallel > 1 ? (int)s->tensor_parallel : 0,
                                 .fixed_context = s->context_parallel > 1 ? (int)s->context_parallel : 0,
                                 .fixed_expert = s->expert_parallel > 1 ? (int)s->expert_parallel : 0,
                                 .margin = margin};
  fsdp_status status = configure(planner, &search->base);
  if (!status) status = fsdp_pricing_check(&search->base, profile, &planner->error);
  if (status) return status;
  int parts = 1;
  status = fsdp_plan_count_batch_parts(&search->base, &parts, &planner->error);
  if (status && (!s->global_batch || s->mesh)) return status;
  search->global_batch = s->global_batch ? s->global_batch : s->plan.batch * s->plan.micro_batches * parts;
  memcpy(search->fixed, s->fixed, sizeof search->fixed);
  if (planner->sharding) search->fixed[FSDP_SEARCH_STRATEGY] = true; // rules say what is sharded
  memcpy(search->limit_bytes, search->base.limits.bytes, sizeof search->limit_bytes);
  search->shared_limit_bytes = search->base.limits.shared_bytes;
  return FSDP_OK;
}

static json_t *whole_text(int64_t value) {
  return json_sprintf("%" PRId64, value);
}

// What sets such a plan again: the search's choices.
static json_t *settings_json(const fsdp_search_config *search, const fsdp_plan_config *plan) {
  char mesh[FSDP_MESH_TEXT_BYTES], rules[FSDP_SAVING_TEXT_BYTES], wrap[256];
  json_t *set = json_object();
  put(set, "mesh", json_string(fsdp_mesh_print(&plan->mesh, ",", mesh)));
  put(set, "strategy", json_string(fsdp_strategy_name(plan->strategy)));
  put(set, "sequence-parallel", json_string(plan->sequence_parallel ? "on" : "off"));
  put(set, "wrap", json_string(fsdp_value_print_wrap(&plan->wrap, wrap, sizeof wrap)));
  if (plan->wrap.kind == FSDP_WRAP_SIZE) put(set, "numel-to-wrap", whole_text(plan->wrap.numel));
  if (fsdp_model_expert_layers(&plan->model)) put(set, "expert-blocks", whole_text(plan->expert_blocks));
  put(set, "recompute", json_string(fsdp_saving_print(&plan->saving, FSDP_FATE_RECOMPUTE, rules)));
  put(set, "offload-activations", json_string(fsdp_saving_print(&plan->saving, FSDP_FATE_OFFLOAD, rules)));
  put(set, "cpu-offload", json_string(plan->cpu_offload ? "on" : "off"));
  put(set, "prefetch", whole_text(plan->prefetch));
  put(set, "batch-size", whole_text(plan->batch));
  put(set, "grad-accum", whole_text(plan->micro_batches));
  put(set, "accumulate", json_string(plan->accumulate == FSDP_ACCUMULATE_LOCAL ? "local" : "reduce"));
  if (search->limit_bytes[FSDP_SPACE_DEVICE]) {
    char margin[32];
    put(set, "memory-limit", whole_text(search->limit_bytes[FSDP_SPACE_DEVICE]));
    put(set, "memory-margin", json_string(fsdp_print_real(search->margin, margin, sizeof margin)));
  }
  return set;
}

static json_t *plans_json(const fsdp_search_config *search, const fsdp_search_result *result) {
  json_t *root = json_object(), *plans = json_array();
  for (int i = 0; i < result->count; i++) {
    const fsdp_search_plan *plan = &result->plans[i];
    json_t *row = json_object();
    put(row, "settings", settings_json(search, &plan->config));
    put(row, "step_ms", json_real(1e3 * plan->step_s));
    put(row, "tokens_per_s", json_real(plan->tokens_per_s));
    put(row, "mfu", number_or_null(plan->mfu));
    put(row, "device_bytes", json_integer(plan->bytes[FSDP_SPACE_DEVICE]));
    put(row, "host_bytes", json_integer(plan->bytes[FSDP_SPACE_HOST]));
    put(row, "hash", json_sprintf("%016" PRIx64, plan->hash));
    FSDP_CHECK(json_array_append_new(plans, row) == 0, "JSON of plan %d", i);
  }
  put(root, "plans", plans);
  return root;
}

char *fsdp_planner_search(fsdp_planner *planner) {
  fsdp_search_config search;
  fsdp_search_result result;
  if (!has_profile(planner) || make_search(planner, &search) ||
      fsdp_search_run(&search, &result, &planner->error))
    return NULL;
  json_t *root = plans_json(&search, &result);
  fsdp_search_result_release(&result);
  return print(root);
}
