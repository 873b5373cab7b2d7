// runtime/plan/fsdp_plan.h: settings as texts, to plans, prices and searches as JSON.
#include "models/family.h"
#include "runtime/base/check.h"
#include "runtime/base/nearest.h"
#include "runtime/base/text.h"
#include "runtime/plan/fsdp_plan.h"
#include "runtime/plan/search/evaluate.h"
#include "runtime/plan/search/search.h"
#include "runtime/plan/text/plan_json.h"
#include "runtime/plan/text/profile_text.h"
#include "runtime/plan/text/settings.h"
#include "runtime/plan/text/sharding_text.h"
#include "runtime/plan/text/value.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// Where messages say that a setting comes from.
#define PLACE "fsdp_planner_set"

struct fsdp_planner {
  fsdp_options options; // those of fsdp_plan that say a plan
  bool has_model;
  fsdp_model_config model;
  fsdp_device_profile *profile;
  fsdp_sharding *sharding;
  fsdp_plan_backend backend; // of the last plan
  fsdp_error error;
};

fsdp_planner *fsdp_planner_create(void) {
  fsdp_planner *planner = fsdp_alloc_zeroed(1, sizeof *planner);
  fsdp_options_create(&planner->options);
  return planner;
}

void fsdp_planner_destroy(fsdp_planner *planner) {
  if (!planner) return;
  fsdp_options_destroy(&planner->options);
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

static fsdp_status set_option(fsdp_planner *planner, const char *name, const char *text) {
  const fsdp_option_row *row = fsdp_option_find(name);
  const bool is_auto = row->kind == FSDP_OPTION_TEXT && strcmp(text, "auto") == 0; // fsdp_plan's alone
  if (is_auto || !fsdp_option_store(&planner->options, row, text))
    return fsdp_option_fail_value(row, name, text, PLACE, &planner->error);
  snprintf(planner->options.place[fsdp_option_index(row)], sizeof planner->options.place[0], PLACE);
  return FSDP_OK;
}

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
  planner->model = model;
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
  return set_option(planner, "profile", profile->name);
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
  if (status) return status;
  planner->sharding = sharding;
  return set_option(planner, "sharding", is_document(text) ? "rules" : text);
}

static fsdp_status add_rule(fsdp_planner *planner, const char *text) {
  if (planner->sharding)
    return fsdp_sharding_read_assignment(planner->sharding, text, "set", &planner->error);
  return fsdp_fail(&planner->error, FSDP_ERR_OPTION, "shard '%.200s': set `sharding` first", text);
}

static fsdp_status fail_unknown(const char *name, fsdp_error *error) {
  const char *names[FSDP_OPTION_MAX];
  char question[FSDP_NEAREST_TEXT];
  int count = 0;
  for (const fsdp_option_row *row = fsdp_option_table; row->name; row++)
    if (fsdp_option_belongs(row, FSDP_PROGRAM_PLANNER)) names[count++] = row->name;
  return fsdp_fail(error, FSDP_ERR_OPTION, "unknown setting '%.100s'%s; runtime/plan/fsdp_plan.h lists them",
                   name, fsdp_nearest_question(name, names, count, question));
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
  const fsdp_option_row *row = fsdp_option_find(name);
  const bool is_known = row && fsdp_option_belongs(row, FSDP_PROGRAM_PLANNER);
  return (int)(is_known ? set_option(planner, name, text) : fail_unknown(name, &planner->error));
}

// ---- The configuration of a plan

// Where no limit is given, the profile's machine is the limit.
static void limit_by_profile(const fsdp_planner *planner, fsdp_memory_limits *limits) {
  const fsdp_setup_ranks ranks = fsdp_setup_ranks_planned(&planner->options);
  const fsdp_memory_limits own = fsdp_device_profile_memory(planner->profile, ranks.ranks_per_node);
  if (!limits->bytes[FSDP_SPACE_DEVICE]) {
    limits->bytes[FSDP_SPACE_DEVICE] = own.bytes[FSDP_SPACE_DEVICE];
    limits->shared_bytes = own.shared_bytes;
  }
  if (!limits->bytes[FSDP_SPACE_HOST]) limits->bytes[FSDP_SPACE_HOST] = own.bytes[FSDP_SPACE_HOST];
}

// As fsdp_plan makes it of its options (launcher/setup).
static fsdp_status configure(fsdp_planner *planner, fsdp_plan_config *config) {
  const fsdp_options *o = &planner->options;
  const fsdp_setup_ranks ranks = fsdp_setup_ranks_planned(o);
  fsdp_error *error = &planner->error;
  if (!planner->has_model)
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "no model: set `model` to a preset's name or the text of a config.json");
  fsdp_status status = fsdp_settings_check(o, error);
  if (!status) status = fsdp_settings_backend(o, true, false, planner->profile, &planner->backend, error);
  if (status) return status;
  *config = fsdp_settings_config(o, &ranks, planner->profile, &planner->backend);
  config->model = planner->model;
  config->exchange = planner->backend.device == FSDP_OP_CPU;
  config->limits.bytes[FSDP_SPACE_DEVICE] = o->memory_limit;
  config->limits.bytes[FSDP_SPACE_HOST] = o->host_memory_limit;
  if (planner->profile) limit_by_profile(planner, &config->limits);
  config->limits = fsdp_settings_arenas(o, &config->limits);
  config->wrap = fsdp_settings_wrap(o, planner->sharding, &config->model);
  config->sharding = planner->sharding;
  if (planner->sharding) planner->sharding->sequence_parallel = o->sequence_parallel;
  status = fsdp_settings_saving(o, &config->saving, error);
  if (!status) status = fsdp_mesh_choose(o, &ranks, &config->mesh, error);
  return status || o->search ? status : fsdp_settings_check_experts(o, config, error);
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
  planner->options.search = false;
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
  const fsdp_setup_ranks ranks = fsdp_setup_ranks_planned(&planner->options);
  if (!has_profile(planner) || make_plan(planner, &plan)) return NULL;
  json_t *root = NULL;
  if (!fsdp_pricing_create(plan, planner->profile, ranks.ranks_per_node, &pricing, &planner->error)) {
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
  const fsdp_setup_ranks ranks = fsdp_setup_ranks_planned(&planner->options);
  *search = (fsdp_search_config){0};
  planner->options.search = true;
  fsdp_status status = configure(planner, &search->base);
  if (!status)
    status = fsdp_settings_search(&planner->options, &ranks, planner->profile, search, &planner->error);
  memcpy(search->limit_bytes, search->base.limits.bytes, sizeof search->limit_bytes);
  search->shared_limit_bytes = search->base.limits.shared_bytes;
  return status;
}

static void put_setting(void *set, fsdp_search_field field, const char *name, const char *value) {
  (void)field;
  put(set, name, json_string(value));
}

// What sets such a plan again: the search's choices, and the limit that it kept.
static json_t *settings_json(const fsdp_search_config *search, const fsdp_plan_config *plan) {
  const int64_t limit = search->limit_bytes[FSDP_SPACE_DEVICE];
  json_t *set = json_object();
  fsdp_settings_of_plan(search, plan, put_setting, set);
  if (limit) put(set, "memory-limit", json_sprintf("%" PRId64, limit));
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
