#include "runtime/plan/search/saving_choice.h"

#include "runtime/base/check.h"
#include "runtime/plan/program/saved.h"
#include "runtime/plan/program/saving_cost.h"
#include "runtime/plan/search/search.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ITEMS_MAX 16
// A change takes this part of the layers at a time; the last one of a sequence is then made exact.
#define PARTS 8

// A value that every layer saves, and in how many layers, from the first on, it is not kept.
typedef struct item {
  char name[FSDP_SAVED_NAME_BYTES];
  bool is_made_once;
  bool is_given;  // a rule that stays names it
  fsdp_fate fate; // there; NONE: not decided yet
  int layers;
} item;

// One more change: `item` gets `fate` in its first `layers` layers.
typedef struct change {
  int item, layers;
  fsdp_fate fate;
} change;

typedef struct greedy {
  const fsdp_saving_choice *choice;
  fsdp_plan_config *config;
  fsdp_evaluator evaluator; // of bytes
  fsdp_saving given;        // rules that stay
  fsdp_graph *graph;
  fsdp_saved saved;
  fsdp_fate *fates;
  double hidden; // time of copies over the host link that the step's products hide
  item items[ITEMS_MAX];
  int item_count;
  change changes[ITEMS_MAX * PARTS];
  int change_count;
} greedy;

static int layers_of(const greedy *s) {
  return s->graph->block_count;
}

// ---- Rules

// Whether all items of that name have the same fate in as many layers, so that one rule does for them. A
// rule for all residuals would name what enters a layer too.
static bool is_uniform(const greedy *s, int index) {
  size_t length = strcspn(s->items[index].name, ":");
  if (strncmp(s->items[index].name, "residual:", length + 1) == 0) return false;
  for (int i = 0; i < s->item_count; i++) {
    const item *other = &s->items[i];
    if (strncmp(other->name, s->items[index].name, length) != 0 || other->name[length] != ':') continue;
    if (other->fate != s->items[index].fate || other->layers != s->items[index].layers) return false;
  }
  return true;
}

// The rules of the items' fates, added to those given.
static fsdp_saving rules_of(const greedy *s) {
  fsdp_saving saving = s->given;
  for (int i = 0; i < s->item_count; i++) {
    const item *it = &s->items[i];
    if (!it->layers) continue;
    fsdp_saving_rule rule = {.fate = it->fate, .layers = it->layers < layers_of(s) ? it->layers : 0};
    bool whole = is_uniform(s, i);
    snprintf(rule.name, sizeof rule.name, "%.*s", whole ? (int)strcspn(it->name, ":") : (int)sizeof it->name,
             it->name);
    bool known = false;
    for (int r = 0; r < saving.count; r++) known |= strcmp(saving.rules[r].name, rule.name) == 0;
    if (known) continue;
    FSDP_CHECK(saving.count < FSDP_SAVING_RULES_MAX, "more than %d rules", FSDP_SAVING_RULES_MAX);
    saving.rules[saving.count++] = rule;
  }
  return saving;
}

// ---- Cost

typedef struct price {
  double cost;
  int64_t kept_bytes;
} price;

static void resolve(greedy *s, const fsdp_saving *saving) {
  FSDP_CHECK(fsdp_saving_resolve(saving, s->graph, s->config->prefetch, s->fates, NULL) == FSDP_OK,
             "rules that do not fit their own model");
}

static double repeated_time(const greedy *s) {
  return fsdp_saving_repeated_work(s->graph, s->fates, -1, s->config->param_dtype,
                                   s->config->backend->flops_per_byte)
      .time;
}

// Copies up and down run beside products, so only what they take longer is felt, and their traffic. Half of
// the layers' forward is counted as hiding them: the host's memory serves the other ranks too.
static void measure_hidden(greedy *s) {
  fsdp_saving blocks = fsdp_saving_of_blocks();
  resolve(s, &blocks);
  s->hidden = repeated_time(s) / 2;
}

static price price_of(greedy *s) {
  fsdp_saving saving = rules_of(s);
  resolve(s, &saving);
  fsdp_dtype dtype = s->config->param_dtype;
  double offloaded = (double)fsdp_saving_bytes(s->graph, &s->saved, s->fates, FSDP_FATE_OFFLOAD, -1, dtype);
  double link = offloaded * s->config->backend->link_ratio;
  return (price){.cost = repeated_time(s) + 2 * offloaded + (link > s->hidden ? link - s->hidden : 0),
                 .kept_bytes = fsdp_saving_bytes(s->graph, &s->saved, s->fates, FSDP_FATE_KEEP, -1, dtype)};
}

// The items' next change of one kind; false if there is none.
static bool next_change(const greedy *s, int index, fsdp_fate fate, change *out) {
  const item *it = &s->items[index];
  bool allowed = fate == FSDP_FATE_OFFLOAD ? s->choice->offload : s->choice->recompute && !it->is_made_once;
  if (!allowed || it->is_given || (it->fate != FSDP_FATE_NONE && it->fate != fate) ||
      it->layers == layers_of(s))
    return false;
  int step = (layers_of(s) + PARTS - 1) / PARTS, layers = it->layers + step;
  *out = (change){index, layers < layers_of(s) ? layers : layers_of(s), fate};
  return true;
}

static void apply(greedy *s, const change *c) {
  s->items[c->item].fate = c->fate;
  s->items[c->item].layers = c->layers;
}

// Adds the change of least cost per byte to the sequence. False if none saves anything.
static bool add_cheapest(greedy *s, price *now) {
  double least = 0;
  bool found = false;
  price after = *now;
  change best = {0};
  for (int i = 0; i < s->item_count; i++) {
    for (int kind = 0; kind < 2; kind++) {
      change c;
      if (!next_change(s, i, kind ? FSDP_FATE_OFFLOAD : FSDP_FATE_RECOMPUTE, &c)) continue;
      item before = s->items[i];
      apply(s, &c);
      price p = price_of(s);
      s->items[i] = before;
      double saved = (double)(now->kept_bytes - p.kept_bytes), cost = p.cost - now->cost;
      if (saved <= 0 || (found && cost / saved >= least)) continue;
      found = true;
      least = cost / saved, best = c, after = p;
    }
  }
  if (!found) return false;
  apply(s, &best);
  s->changes[s->change_count++] = best;
  *now = after;
  return true;
}

// ---- Search

// What the given rules name, in whichever layers, is not decided again.
static void list_items(greedy *s) {
  for (int i = 0; i < s->saved.count; i++) {
    const fsdp_saved_value *value = &s->saved.values[i];
    char name[FSDP_SAVED_NAME_BYTES];
    fsdp_saved_name(s->graph, value, name);
    int known = 0;
    while (known < s->item_count && strcmp(s->items[known].name, name) != 0) known++;
    if (known == s->item_count) {
      FSDP_CHECK(s->item_count < ITEMS_MAX, "a layer saves more than %d values", ITEMS_MAX);
      item *it = &s->items[s->item_count++];
      *it = (item){.is_made_once = value->is_made_once};
      memcpy(it->name, name, sizeof name);
    }
    s->items[known].is_given |= s->fates[value->value] != FSDP_FATE_KEEP;
  }
}

// Sets the items to the first `count` changes of the sequence.
static void set_changes(greedy *s, int count) {
  for (int i = 0; i < s->item_count; i++) s->items[i].fate = FSDP_FATE_NONE, s->items[i].layers = 0;
  for (int c = 0; c < count; c++) apply(s, &s->changes[c]);
}

// Whether the plan with these rules fits, which are config's then.
static bool try_rules(greedy *s, const fsdp_saving *rules) {
  fsdp_evaluation e;
  s->config->saving = *rules;
  return fsdp_evaluate_need(&s->evaluator, s->config, &e) &&
         fsdp_excess_of(s->choice->allowed, e.bytes, NULL) == 0;
}

static bool try_items(greedy *s) {
  fsdp_saving rules = rules_of(s);
  return try_rules(s, &rules);
}

// What is offloaded comes back before it is used. If that is too much where gradients have piled up, in the
// backward of the first layers, whole layers recomputed from little need less.
static bool try_whole_layers(greedy *s) {
  static const char *const offloaded[] = {"none", "block_inputs", "residual"};
  if (s->given.count) return false;
  for (int i = 0; i < (s->choice->offload ? 3 : 1); i++) {
    fsdp_saving rules = {0};
    fsdp_status status =
        fsdp_saving_parse(s->choice->recompute ? "block" : "none", "", FSDP_FATE_RECOMPUTE, &rules, NULL);
    if (!status) status = fsdp_saving_parse(offloaded[i], "", FSDP_FATE_OFFLOAD, &rules, NULL);
    FSDP_CHECK(status == FSDP_OK, "malformed rules");
    if (try_rules(s, &rules)) return true;
  }
  return false;
}

// The least number of changes with which the plan fits, of which the last takes no more layers than needed.
static bool find_least(greedy *s) {
  int low = 0, high = s->change_count; // high fits
  set_changes(s, high);
  if (!try_items(s)) {
    fsdp_saving most = s->config->saving;
    if (try_whole_layers(s)) return true;
    s->config->saving = most;
    return false;
  }
  while (low < high) {
    int middle = low + (high - low) / 2;
    set_changes(s, middle);
    if (try_items(s))
      high = middle;
    else
      low = middle + 1;
  }
  set_changes(s, high);
  if (high > 0) {
    item *last = &s->items[s->changes[high - 1].item];
    int most = last->layers;
    set_changes(s, high - 1);
    int least = last->layers + 1;
    last->fate = s->changes[high - 1].fate;
    while (least < most) {
      int middle = least + (most - least) / 2;
      last->layers = middle;
      if (try_items(s))
        most = middle;
      else
        least = middle + 1;
    }
    last->layers = most;
  }
  s->config->saving = rules_of(s);
  return true;
}

fsdp_status fsdp_saving_choose(const fsdp_saving_choice *choice, fsdp_plan_config *config, bool *found,
                               fsdp_error *error) {
  greedy s = {.choice = choice,
              .config = config,
              .given = config->saving,
              .evaluator = {.allowed = *choice->allowed}};
  s.graph = fsdp_model_graph(&config->model, config->batch, config->seq);
  s.saved = fsdp_saved_create(s.graph);
  s.fates = fsdp_alloc((size_t)s.graph->value_count * sizeof *s.fates);
  fsdp_status status = fsdp_saving_resolve(&s.given, s.graph, config->prefetch, s.fates, error);
  if (status == FSDP_OK) {
    list_items(&s);
    measure_hidden(&s);
    price now = price_of(&s);
    while (add_cheapest(&s, &now)) continue;
    *found = find_least(&s);
  }
  fsdp_evaluator_release(&s.evaluator);
  fsdp_saved_release(&s.saved);
  free(s.fates);
  fsdp_graph_destroy(s.graph);
  return status;
}

// ---- On a machine with a profile

// Everything is fixed but what may be chosen.
static fsdp_search_config search_of(const fsdp_saving_choice *choice, const fsdp_device_profile *profile,
                                    int ranks_per_node, const fsdp_plan_config *given, int batch_parts) {
  fsdp_search_config search = {.base = *given,
                               .ranks = fsdp_mesh_ranks(&given->mesh),
                               .ranks_per_node = ranks_per_node,
                               .global_batch = given->batch * given->micro_batches * batch_parts,
                               .profile = profile,
                               .shared_limit_bytes = choice->allowed->shared_bytes};
  for (int f = 0; f < FSDP_SEARCH_FIELD_COUNT; f++) search.fixed[f] = true;
  search.fixed[FSDP_SEARCH_RECOMPUTE] = !choice->recompute;
  search.fixed[FSDP_SEARCH_OFFLOAD_ACTIVATIONS] = !choice->offload;
  memcpy(search.limit_bytes, choice->allowed->bytes, sizeof search.limit_bytes);
  return search;
}

fsdp_status fsdp_saving_choose_priced(const fsdp_saving_choice *choice, const fsdp_device_profile *profile,
                                      int ranks_per_node, fsdp_plan_config *config, fsdp_error *error) {
  const fsdp_plan_config given = *config;
  fsdp_search_result result;
  fsdp_search_plan chosen;
  bool found;
  int parts;
  fsdp_status status = fsdp_saving_choose(choice, config, &found, error);
  if (status == FSDP_OK) status = fsdp_plan_count_batch_parts(&given, &parts, error);
  if (status) return status;
  const fsdp_search_config search = search_of(choice, profile, ranks_per_node, &given, parts);
  status = fsdp_search_run(&search, &result, error);
  if (status) return status;
  if (result.count) {
    const bool fits = fsdp_search_price(&search, config, &chosen) == FSDP_OK;
    if (!fits || result.plans[0].step_s < chosen.step_s) config->saving = result.plans[0].config.saving;
  }
  fsdp_search_result_release(&result);
  return FSDP_OK;
}
