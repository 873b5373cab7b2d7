// What is saved: chains of sets of values that are not kept.
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/program/saved.h"
#include "runtime/plan/program/saving_cost.h"
#include "runtime/plan/search/search_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(FSDP_SAVED_NAME_BYTES <= FSDP_SAVING_NAME_BYTES, "a rule can name what is saved");

// Beside those of items: for whole layers, and for what enters them.
#define OWN_RULES 2

// ---- Items

// Values of a layer that are decided together: those of one name, or of one gemm.
typedef struct item {
  char name[FSDP_SAVED_NAME_BYTES];
  fsdp_repeated_work work; // of making it again
  double bytes;
  bool is_made_once;
  bool is_cheap; // may be made again, without a gemm if the rest is there
} item;

static void append(char *list, size_t bytes, const char *name) {
  const size_t used = strlen(list);
  FSDP_CHECK(used + strlen(name) + 2 <= bytes, "a list of more than %zu bytes", bytes);
  snprintf(list + used, bytes - used, "%s%s", used ? "," : "", name);
}

// NULL if that would be more than `most`.
static item *find_item(item *items, int *count, int most, const char *name) {
  for (int i = 0; i < *count; i++)
    if (strcmp(items[i].name, name) == 0) return &items[i];
  if (*count >= most) return NULL;
  items[*count] = (item){.bytes = 0};
  snprintf(items[*count].name, sizeof items[0].name, "%s", name);
  return &items[(*count)++];
}

static int compare_items(const void *a, const void *b) {
  const item *x = a, *y = b;
  const double difference = x->work.time * y->bytes - y->work.time * x->bytes;
  return difference < 0 ? -1 : difference > 0 ? 1 : strcmp(x->name, y->name);
}

static bool is_residual(const fsdp_saved_value *value) {
  return strcmp(value->name, "residual") == 0;
}

// What it takes to make an item again, everything else kept.
static fsdp_repeated_work work_of(const fsdp_search_config *search, const fsdp_graph *graph, const item *it) {
  const fsdp_plan_config *c = &search->base;
  fsdp_saving saving = {.count = 1, .rules = {{.fate = FSDP_FATE_RECOMPUTE}}};
  fsdp_fate *fates = fsdp_alloc((size_t)graph->value_count * sizeof *fates);
  memcpy(saving.rules[0].name, it->name, sizeof it->name);
  FSDP_CHECK(fsdp_saving_resolve(&saving, graph, 0, fates, NULL) == FSDP_OK, "no rule for %s", it->name);
  const fsdp_repeated_work work =
      fsdp_saving_repeated_work(graph, fates, -1, c->param_dtype, c->backend->flops_per_byte);
  free(fates);
  return work;
}

// The fates that given rules decide in the graph's few layers. Of layers that are recomputed whole, what
// another rule names may still be offloaded: they leave all open.
static fsdp_fate *given_fates(const fsdp_saving *given, const fsdp_graph *graph) {
  fsdp_saving named = {.count = 0};
  fsdp_fate *fates = fsdp_alloc((size_t)graph->value_count * sizeof *fates);
  for (int r = 0; r < given->count; r++) {
    if (strcmp(given->rules[r].name, "block") == 0) continue;
    named.rules[named.count] = given->rules[r];
    named.rules[named.count++].layers = 0;
  }
  if (fsdp_saving_resolve(&named, graph, 0, fates, NULL) != FSDP_OK) { // of other layers, or no rules at all
    named.count = 0;
    FSDP_CHECK(fsdp_saving_resolve(&named, graph, 0, fates, NULL) == FSDP_OK, "no rules");
  }
  return fates;
}

// What layers save and no given rule names, cheapest to compute again first, for their bytes; no more than
// there may be rules.
static int list_items(const fsdp_search_config *search, const fsdp_graph *graph,
                      item items[SEARCH_ITEMS_MAX]) {
  const fsdp_saving *given = &search->base.saving;
  const int most = (int)fsdp_min_i64(SEARCH_ITEMS_MAX, FSDP_SAVING_RULES_MAX - OWN_RULES - given->count);
  fsdp_saved saved = fsdp_saved_create(graph);
  fsdp_fate *fates = given_fates(given, graph);
  int count = 0;
  for (int i = 0; i < saved.count; i++) {
    const fsdp_saved_value *value = &saved.values[i];
    char name[FSDP_SAVED_NAME_BYTES];
    if (fates[value->value] == FSDP_FATE_RECOMPUTE || fates[value->value] == FSDP_FATE_OFFLOAD) continue;
    fsdp_saved_name(graph, value, name);
    if (!graph->forward[value->maker].weight_count && !is_residual(value)) name[strcspn(name, ":")] = 0;
    item *it = find_item(items, &count, most, name);
    if (!it) continue;
    it->is_made_once |= value->is_made_once;
    it->bytes += (double)fsdp_graph_bytes(graph, value->value, search->base.param_dtype);
  }
  for (int i = 0; i < count; i++) {
    if (items[i].is_made_once) continue;
    items[i].work = work_of(search, graph, &items[i]);
    items[i].is_cheap = !search->fixed[FSDP_SEARCH_RECOMPUTE] && items[i].work.flops == 0;
  }
  fsdp_saved_release(&saved);
  free(fates);
  qsort(items, (size_t)count, sizeof *items, compare_items);
  return count;
}

// ---- Chains

static void add_set(search_chain *chain, const char *recompute, const char *offload) {
  FSDP_CHECK(chain->count < SEARCH_SETS_MAX, "more than %d sets", SEARCH_SETS_MAX);
  search_saved *set = &chain->sets[chain->count++];
  snprintf(set->recompute, sizeof set->recompute, "%s", recompute);
  snprintf(set->offload, sizeof set->offload, "%s", offload);
}

// A chain of what is fixed alone, to begin with.
static search_chain *add_chain(search_space *space) {
  FSDP_CHECK(space->chain_count < SEARCH_CHAINS_MAX, "more than %d chains", SEARCH_CHAINS_MAX);
  search_chain *chain = &space->chains[space->chain_count++];
  add_set(chain, "", "");
  return chain;
}

// Recomputed: what no gemm makes; then gemms' results too, the cheapest for their bytes first; then all.
static void add_recompute_chains(search_space *space, const item *items, int count, const char *cheap) {
  search_chain *ladder = add_chain(space);
  char list[sizeof ladder->sets[0].recompute];
  snprintf(list, sizeof list, "%s", cheap);
  if (*cheap) add_set(ladder, cheap, "");
  for (int i = 0; i < count && ladder->count < SEARCH_SETS_MAX - 1; i++) {
    if (strncmp(items[i].name, "linear", 6) != 0) continue;
    append(list, sizeof list, items[i].name);
    add_set(ladder, list, "");
  }
  append(list, sizeof list, "block");
  add_set(ladder, list, "");
  search_chain *blocks = add_chain(space);
  add_set(blocks, "block", "");
}

// Recomputed: one item after the other, the cheapest for their bytes first, as many as there may be sets.
static void add_recompute_ladder(search_space *space, const item *items, int count) {
  search_chain *ladder = add_chain(space);
  char list[sizeof ladder->sets[0].recompute] = "";
  for (int i = 0; i < count && ladder->count < SEARCH_SETS_MAX; i++) {
    if (items[i].is_made_once) continue;
    append(list, sizeof list, items[i].name);
    add_set(ladder, list, "");
  }
}

// Offloaded: one item after the other, of those that `recompute` does not name, as many as there may be sets.
static void add_offload_ladder(search_space *space, const item *items, int count, const char *recompute) {
  search_chain *ladder = add_chain(space);
  char list[sizeof ladder->sets[0].offload] = "";
  if (*recompute) add_set(ladder, recompute, "");
  for (int i = 0; i < count && ladder->count < SEARCH_SETS_MAX; i++) {
    if (items[i].is_cheap) continue;
    append(list, sizeof list, items[i].name);
    add_set(ladder, recompute, list);
  }
}

// Offloaded: everything but what is cheap to compute again; or what enters layers, all else recomputed.
static void add_offload_chains(const fsdp_search_config *search, search_space *space, const item *items,
                               int count, const char *cheap) {
  const bool recompute = !search->fixed[FSDP_SEARCH_RECOMPUTE];
  char list[sizeof space->chains[0].sets[0].offload] = "";
  for (int i = 0; i < count; i++)
    if (!items[i].is_cheap) append(list, sizeof list, items[i].name);
  search_chain *most = add_chain(space);
  if (*cheap) add_set(most, cheap, "");
  add_set(most, cheap, list);
  search_chain *inputs = add_chain(space);
  if (recompute) add_set(inputs, "block", "");
  add_set(inputs, recompute ? "block" : "", "block_inputs");
}

// The values of `offload` go to the host in every layer if need be; of the others those that are cheap to
// make again are made again, or all, in as few layers as must.
static void add_finer_chains(search_space *space, const char *cheap, const char *offload, bool recompute) {
  char block[sizeof space->chains[0].sets[0].recompute];
  search_chain *chain = add_chain(space);
  add_set(chain, "", offload);
  if (!recompute) return;
  if (*cheap) {
    snprintf(block, sizeof block, "%s", cheap);
    append(block, sizeof block, "block");
    add_set(chain, cheap, offload);
    add_set(chain, block, offload);
    chain = add_chain(space);
    add_set(chain, "", offload);
  }
  add_set(chain, "block", offload);
}

// Chains that offload the first, the first two, ... of the items in the order of seconds of recomputation for
// their bytes; each with and without the items that are made once.
static void list_finer_chains(const fsdp_search_config *search, search_space *space, const item *items,
                              int count, const char *cheap) {
  const bool recompute = !search->fixed[FSDP_SEARCH_RECOMPUTE];
  char lists[2][sizeof space->chains[0].sets[0].offload] = {"", ""}; // without, and with
  for (int i = 0; i < count; i++)
    if (items[i].is_made_once) append(lists[1], sizeof lists[1], items[i].name);
  for (int i = count - 1; i >= 0; i--) {
    if (items[i].is_made_once || items[i].is_cheap) continue;
    for (int with = 0; with < 2; with++) {
      append(lists[with], sizeof lists[with], items[i].name);
      if (with == 1) space->finer[space->finer_count++] = space->chain_count;
      add_finer_chains(space, cheap, lists[with], recompute);
    }
  }
}

// Recomputed: one item. A step that waits for small messages may be faster so, although everything fits: what
// is made again early no longer waits for a gradient.
static void list_single_chains(search_space *space, const item *items, int count) {
  for (int i = 0; i < count; i++) {
    if (items[i].is_made_once) continue;
    search_chain *chain = add_chain(space);
    add_set(chain, items[i].name, "");
  }
}

// Offloaded: what enters layers, or one item: a step may be faster so for the same reason.
static void list_offload_chains(search_space *space, const item *items, int count) {
  for (int i = -1; i < count; i++) {
    if (i >= 0 && items[i].is_cheap) continue;
    search_chain *chain = add_chain(space);
    add_set(chain, "", i < 0 ? "block_inputs" : items[i].name);
  }
}

// Recomputed: one item, while another goes to the host: either alone may gain nothing.
static void list_pair_chains(search_space *space, const item *items, int count) {
  for (int i = 0; i < count; i++) {
    for (int o = 0; o < count && space->chain_count < SEARCH_CHAINS_MAX; o++) {
      if (o == i || items[i].is_made_once || items[o].is_cheap) continue;
      search_chain *chain = add_chain(space);
      add_set(chain, items[i].name, items[o].name);
    }
  }
}

void search_list_chains(const fsdp_search_config *search, search_space *space, const fsdp_graph *graph) {
  item items[SEARCH_ITEMS_MAX];
  char cheap[sizeof space->chains[0].sets[0].recompute] = "";
  const int count = list_items(search, graph, items);
  for (int i = 0; i < count; i++)
    if (items[i].is_cheap) append(cheap, sizeof cheap, items[i].name);
  const bool is_full = search->base.saving.count + OWN_RULES > FSDP_SAVING_RULES_MAX; // of given rules
  const bool recompute = !search->fixed[FSDP_SEARCH_RECOMPUTE] && !is_full;
  if (recompute) add_recompute_chains(space, items, count, cheap);
  // A CPU's device memory is the host's, unless it has a limit of its own.
  const fsdp_device_profile *profile = search->profile;
  const bool has_host = profile->up_rate > 0 && profile->down_rate > 0 &&
                        (profile->device != FSDP_OP_CPU || search->limit_bytes[FSDP_SPACE_DEVICE] > 0);
  const bool offload = !search->fixed[FSDP_SEARCH_OFFLOAD_ACTIVATIONS] && has_host && !is_full;
  if (offload) add_offload_chains(search, space, items, count, cheap);
  if (!space->chain_count) add_chain(space);
  space->usual_count = space->chain_count;
  if (offload) list_finer_chains(search, space, items, count, cheap);
  if (recompute) add_recompute_ladder(space, items, count);
  if (offload) add_offload_ladder(space, items, count, cheap);
  space->first_single = space->chain_count;
  if (recompute) list_single_chains(space, items, count);
  space->first_offload = space->chain_count;
  if (offload) list_offload_chains(space, items, count);
  space->first_pair = space->chain_count;
  if (offload && recompute) list_pair_chains(space, items, count);
}

// ---- Rules

static bool names(const char *list, const char *name, size_t length) {
  for (const char *at = list; *at; at += *at == ',') {
    const size_t one = strcspn(at, ",");
    if (one == length && strncmp(at, name, one) == 0) return true;
    at += one;
  }
  return false;
}

// Rules for the names of `list`, in the first `layers` layers those that `before` lacks.
static void add_rules(fsdp_saving *saving, const char *list, const char *before, fsdp_fate fate, int layers) {
  for (const char *at = list; *at; at += *at == ',') {
    const size_t length = strcspn(at, ",");
    const bool everywhere = names(before, at, length);
    if (everywhere || layers != 0) {
      FSDP_CHECK(saving->count < FSDP_SAVING_RULES_MAX, "more than %d rules", FSDP_SAVING_RULES_MAX);
      fsdp_saving_rule *rule = &saving->rules[saving->count++];
      *rule = (fsdp_saving_rule){.fate = fate, .layers = everywhere ? 0 : layers};
      snprintf(rule->name, sizeof rule->name, "%.*s", (int)length, at);
    }
    at += length;
  }
}

fsdp_saving search_saving_of(const fsdp_search_config *search, const search_chain *chain, int set,
                             int layers) {
  static const search_saved nothing = {.recompute = ""};
  fsdp_saving saving = search->base.saving;
  const search_saved *to = &chain->sets[set], *from = set > 0 ? &chain->sets[set - 1] : &nothing;
  if (layers >= search->base.model.num_layers) layers = 0, from = to;
  // Whole layers include what their ops are named by.
  const bool blocks = from == to && names(to->recompute, "block", 5);
  add_rules(&saving, blocks ? "block" : to->recompute, blocks ? "block" : from->recompute,
            FSDP_FATE_RECOMPUTE, layers);
  add_rules(&saving, to->offload, from->offload, FSDP_FATE_OFFLOAD, layers);
  return saving;
}
