#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/program/saved.h"
#include "runtime/plan/program/saving_cost.h"
#include "runtime/plan/search/search_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(FSDP_SAVED_NAME_BYTES <= FSDP_SAVING_NAME_BYTES, "a rule can name what is saved");
// Context parallelism leaves a rank at least so many positions; fewer where that is the only use of ranks,
// and one where the other is tensor of more ranks than heads.
#define CONTEXT_ROWS       256
#define CONTEXT_ROWS_LEAST 16
// With more ranks of tensor than heads, elements of a layer's rows, for each of the weights that a rank has
// with as many ranks as heads: both are sent about as often.
#define TENSOR_ROWS 4

// ---- What is saved

// Values of a layer that are decided together: those of one name, or of one gemm.
typedef struct item {
  char name[FSDP_SAVED_NAME_BYTES];
  fsdp_repeated_work work; // of making it again
  double bytes;
  bool is_made_once;
} item;

static void append(char *list, size_t bytes, const char *name) {
  const size_t used = strlen(list);
  FSDP_CHECK(used + strlen(name) + 2 <= bytes, "a list of more than %zu bytes", bytes);
  snprintf(list + used, bytes - used, "%s%s", used ? "," : "", name);
}

static int find_item(item *items, int *count, const char *name) {
  for (int i = 0; i < *count; i++)
    if (strcmp(items[i].name, name) == 0) return i;
  FSDP_CHECK(*count < SEARCH_ITEMS_MAX, "a layer saves more than %d values", SEARCH_ITEMS_MAX);
  items[*count] = (item){.bytes = 0};
  snprintf(items[*count].name, sizeof items[0].name, "%s", name);
  return (*count)++;
}

static int compare_items(const void *a, const void *b) {
  const item *x = a, *y = b;
  const double difference = x->work.time * y->bytes - y->work.time * x->bytes;
  return difference < 0 ? -1 : difference > 0 ? 1 : strcmp(x->name, y->name);
}

static bool is_residual(const fsdp_saved_value *value) {
  return strcmp(value->name, "residual") == 0;
}

// What it takes to make an item of the first layer again, everything else kept.
static fsdp_repeated_work work_of(const fsdp_search_config *search, const fsdp_graph *graph, const item *it) {
  const fsdp_plan_config *c = &search->base;
  fsdp_saving saving = {.count = 1, .rules = {{.fate = FSDP_FATE_RECOMPUTE}}};
  fsdp_fate *fates = fsdp_alloc((size_t)graph->value_count * sizeof *fates);
  memcpy(saving.rules[0].name, it->name, sizeof it->name);
  FSDP_CHECK(fsdp_saving_resolve(&saving, graph, 0, fates, NULL) == FSDP_OK, "no rule for %s", it->name);
  const fsdp_repeated_work work =
      fsdp_saving_repeated_work(graph, fates, 0, c->param_dtype, c->backend->flops_per_byte);
  free(fates);
  return work;
}

// What the first layer saves, cheapest to compute again first, for their bytes.
static int list_items(const fsdp_search_config *search, const fsdp_graph *graph,
                      item items[SEARCH_ITEMS_MAX]) {
  fsdp_saved saved = fsdp_saved_create(graph);
  int count = 0;
  for (int i = 0; i < saved.count; i++) {
    const fsdp_saved_value *value = &saved.values[i];
    char name[FSDP_SAVED_NAME_BYTES];
    if (value->layer != 0) continue;
    fsdp_saved_name(graph, value, name);
    if (!graph->forward[value->maker].weight_count && !is_residual(value)) name[strcspn(name, ":")] = 0;
    item *it = &items[find_item(items, &count, name)];
    it->is_made_once |= value->is_made_once;
    it->bytes += (double)fsdp_graph_bytes(graph, value->value, search->base.param_dtype);
  }
  for (int i = 0; i < count; i++)
    if (!items[i].is_made_once) items[i].work = work_of(search, graph, &items[i]);
  fsdp_saved_release(&saved);
  qsort(items, (size_t)count, sizeof *items, compare_items);
  return count;
}

static double largest_value_bytes(const fsdp_graph *graph, fsdp_dtype dtype) {
  fsdp_saved saved = fsdp_saved_create(graph);
  double most = 0;
  for (int i = 0; i < saved.count; i++)
    if (saved.values[i].layer == 0)
      most = fmax(most, (double)fsdp_graph_bytes(graph, saved.values[i].value, dtype));
  fsdp_saved_release(&saved);
  return most;
}

// Made without a gemm, if the rest is there.
static bool is_cheap(const item *it) {
  return !it->is_made_once && it->work.flops == 0;
}

static void add_set(search_chain *chain, const char *recompute, const char *offload) {
  FSDP_CHECK(chain->count < SEARCH_SETS_MAX, "more than %d sets", SEARCH_SETS_MAX);
  search_saved *set = &chain->sets[chain->count++];
  snprintf(set->recompute, sizeof set->recompute, "%s", recompute);
  snprintf(set->offload, sizeof set->offload, "%s", offload);
}

// Recomputed: what no gemm makes; then gemms' results too, the cheapest for their bytes first; then all.
static void add_recompute_chains(search_space *space, const item *items, int count, const char *cheap) {
  search_chain *ladder = &space->chains[space->chain_count++];
  char list[sizeof ladder->sets[0].recompute];
  snprintf(list, sizeof list, "%s", cheap);
  add_set(ladder, "", "");
  if (*cheap) add_set(ladder, cheap, "");
  for (int i = 0; i < count && ladder->count < SEARCH_SETS_MAX - 1; i++) {
    if (strncmp(items[i].name, "linear", 6) != 0) continue;
    append(list, sizeof list, items[i].name);
    add_set(ladder, list, "");
  }
  append(list, sizeof list, "block");
  add_set(ladder, list, "");
  search_chain *blocks = &space->chains[space->chain_count++];
  add_set(blocks, "", "");
  add_set(blocks, "block", "");
}

// Offloaded: everything but what is cheap to compute again; or what enters layers, all else recomputed.
static void add_offload_chains(const fsdp_search_config *search, search_space *space, const item *items,
                               int count, const char *cheap) {
  const bool recompute = !search->fixed[FSDP_SEARCH_RECOMPUTE];
  char list[sizeof space->chains[0].sets[0].offload] = "";
  for (int i = 0; i < count; i++)
    if (!is_cheap(&items[i])) append(list, sizeof list, items[i].name);
  search_chain *most = &space->chains[space->chain_count++];
  add_set(most, "", "");
  if (recompute && *cheap) add_set(most, cheap, "");
  add_set(most, recompute ? cheap : "", list);
  search_chain *inputs = &space->chains[space->chain_count++];
  add_set(inputs, "", "");
  if (recompute) add_set(inputs, "block", "");
  add_set(inputs, recompute ? "block" : "", "block_inputs");
}

// The values of `offload` go to the host in every layer if need be; of the others those that are cheap to
// make again are made again, or all, in as few layers as must.
static void add_finer_chains(search_space *space, const char *cheap, const char *offload, bool recompute) {
  char block[sizeof space->chains[0].sets[0].recompute];
  search_chain *chain = &space->chains[space->chain_count++];
  add_set(chain, "", "");
  add_set(chain, "", offload);
  if (!recompute) return;
  if (*cheap) {
    snprintf(block, sizeof block, "%s", cheap);
    append(block, sizeof block, "block");
    add_set(chain, cheap, offload);
    add_set(chain, block, offload);
    chain = &space->chains[space->chain_count++];
    add_set(chain, "", "");
    add_set(chain, "", offload);
  }
  add_set(chain, "block", offload);
}

// Offloaded: what takes longest to make again for its bytes, of this the first, the first two and so on;
// each with and without what is made once.
static void list_finer_chains(const fsdp_search_config *search, search_space *space, const item *items,
                              int count, const char *cheap) {
  const bool recompute = !search->fixed[FSDP_SEARCH_RECOMPUTE];
  char lists[2][sizeof space->chains[0].sets[0].offload] = {"", ""}; // without, and with
  for (int i = 0; i < count; i++)
    if (items[i].is_made_once) append(lists[1], sizeof lists[1], items[i].name);
  for (int i = count - 1; i >= 0; i--) {
    if (items[i].is_made_once || is_cheap(&items[i])) continue;
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
    search_chain *chain = &space->chains[space->chain_count++];
    add_set(chain, "", "");
    add_set(chain, items[i].name, "");
  }
}

// Offloaded: what enters layers, or one item: a step may be faster so for the same reason.
static void list_offload_chains(search_space *space, const item *items, int count) {
  for (int i = -1; i < count; i++) {
    if (i >= 0 && is_cheap(&items[i])) continue;
    search_chain *chain = &space->chains[space->chain_count++];
    add_set(chain, "", "");
    add_set(chain, "", i < 0 ? "block_inputs" : items[i].name);
  }
}

// Recomputed: one item, while another goes to the host: either alone may gain nothing.
static void list_pair_chains(search_space *space, const item *items, int count) {
  for (int i = 0; i < count; i++) {
    for (int o = 0; o < count && space->chain_count < SEARCH_CHAINS_MAX; o++) {
      if (o == i || items[i].is_made_once || is_cheap(&items[o])) continue;
      search_chain *chain = &space->chains[space->chain_count++];
      add_set(chain, "", "");
      add_set(chain, items[i].name, items[o].name);
    }
  }
}

static void list_chains(const fsdp_search_config *search, search_space *space, const fsdp_graph *graph) {
  item items[SEARCH_ITEMS_MAX];
  char cheap[sizeof space->chains[0].sets[0].recompute] = "";
  const int count = list_items(search, graph, items);
  for (int i = 0; i < count; i++)
    if (is_cheap(&items[i])) append(cheap, sizeof cheap, items[i].name);
  if (!search->fixed[FSDP_SEARCH_RECOMPUTE]) add_recompute_chains(space, items, count, cheap);
  // A CPU's device memory is the host's.
  const bool has_host = search->profile->device != FSDP_OP_CPU && search->profile->up_rate > 0;
  const bool offload = !search->fixed[FSDP_SEARCH_OFFLOAD_ACTIVATIONS] && has_host;
  if (offload) add_offload_chains(search, space, items, count, cheap);
  if (!space->chain_count) add_set(&space->chains[space->chain_count++], "", "");
  space->usual_count = space->chain_count;
  if (offload) list_finer_chains(search, space, items, count, cheap);
  space->first_single = space->chain_count;
  if (!search->fixed[FSDP_SEARCH_RECOMPUTE]) list_single_chains(space, items, count);
  space->first_offload = space->chain_count;
  if (offload) list_offload_chains(space, items, count);
  space->first_pair = space->chain_count;
  if (offload && !search->fixed[FSDP_SEARCH_RECOMPUTE]) list_pair_chains(space, items, count);
}

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

// ---- Units

// Whether no unit but the root's holds matrices of two layers, and the root's of none.
static bool keeps_layers_apart(const fsdp_units *units, const fsdp_graph *graph) {
  for (int u = 0; u < units->count; u++) {
    const fsdp_unit *unit = &units->units[u];
    for (int i = 0; i < unit->param_count; i++) {
      const int param = units->params[unit->first_param + i].param;
      int module = graph->params[param].module, owner = unit->module;
      if (graph->params[param].dims < 2) continue;
      while (module >= 0 && strcmp(graph->modules[module].class_name, graph->block_class) != 0)
        module = graph->modules[module].parent;
      if (module < 0) continue;
      while (owner >= 0 && owner != module) owner = graph->modules[owner].parent;
      if (owner < 0) return false;
    }
  }
  return true;
}

static int64_t module_params(const fsdp_graph *graph, int module) {
  int64_t sum = 0;
  for (int p = 0; p < graph->param_count; p++) {
    int at = graph->params[p].module;
    while (at >= 0 && at != module) at = graph->modules[at].parent;
    if (at >= 0) sum += graph->params[p].numel;
  }
  return sum;
}

static void add_units(const fsdp_search_config *search, search_space *space, fsdp_wrap_policy wrap) {
  FSDP_CHECK(space->units_count < SEARCH_UNITS_MAX, "more than %d ways to make units", SEARCH_UNITS_MAX);
  space->units[space->units_count++] = (search_units){wrap, search->base.expert_blocks};
}

// Thresholds that divide a layer into units and leave none of its matrices to the root: the greatest one for
// each number of units.
// Units by size at the border of each module that is not small: those that keep layers apart, or the others.
// Of thresholds that make as many units, the largest.
static void list_sizes(const fsdp_search_config *search, search_space *space, const fsdp_graph *graph,
                       bool apart, int most) {
  const fsdp_mesh mesh = fsdp_mesh_of(1, 2);
  const int first = space->units_count;
  int counts[SEARCH_UNITS_MAX] = {0};
  for (int m = 0; m < graph->module_count && space->units_count < most; m++) {
    const int64_t numel = module_params(graph, m);
    fsdp_wrap_policy policy = {.kind = FSDP_WRAP_SIZE, .numel = numel};
    fsdp_units *units;
    if (numel >= space->layer_params || numel < space->layer_params / 16 || numel < 1) continue;
    if (fsdp_units_create(graph, &policy, &mesh, &units, NULL) != FSDP_OK) continue;
    int same = -1;
    for (int w = first; w < space->units_count; w++)
      if (counts[w] == units->count) same = w;
    if (keeps_layers_apart(units, graph) == apart) {
      if (same < 0) {
        counts[same = space->units_count] = units->count;
        add_units(search, space, policy);
      }
      if (space->units[same].wrap.numel < numel) space->units[same].wrap = policy;
    }
    fsdp_units_destroy(units);
  }
}

static void list_wraps(const fsdp_search_config *search, search_space *space, const fsdp_graph *graph) {
  add_units(search, space, (fsdp_wrap_policy){.kind = FSDP_WRAP_BLOCK});
  list_sizes(search, space, graph, true, SEARCH_WRAPS_MAX - 1);
  if (search->base.sharding == NULL) add_units(search, space, (fsdp_wrap_policy){.kind = FSDP_WRAP_NONE});
}

// The first wrap with a layer's experts in blocks too. Where ranks have fewer experts than that there is no
// plan.
static void list_expert_blocks(const fsdp_search_config *search, search_space *space) {
  const fsdp_model_config *model = &search->base.model;
  const bool open = !search->fixed[FSDP_SEARCH_EXPERT_BLOCKS] && fsdp_model_expert_layers(model);
  const int64_t most = fsdp_min_i64(model->experts, SEARCH_BLOCKS_MAX);
  for (int blocks = 2; open && blocks <= most; blocks *= 2) {
    add_units(search, space, space->units[0].wrap);
    space->units[space->units_count - 1].expert_blocks = blocks;
    space->has_blocks = true;
  }
}

fsdp_status search_space_create(const fsdp_search_config *search, search_space *space, fsdp_error *error) {
  fsdp_model_config small = search->base.model;
  small.num_layers = fsdp_min_i64(small.num_layers, 2);
  fsdp_status status = fsdp_model_check_seq(&small, search->base.seq, error);
  if (status) return status;
  *space = (search_space){.params = fsdp_model_parameter_count(&search->base.model)};
  fsdp_graph *graph = fsdp_model_graph(&small, 1, search->base.seq);
  for (int m = 0; m < graph->module_count && !space->layer_params; m++)
    if (strcmp(graph->modules[m].class_name, graph->block_class) == 0)
      space->layer_params = module_params(graph, m);
  space->value_bytes = largest_value_bytes(graph, search->base.param_dtype);
  list_chains(search, space, graph);
  if (search->fixed[FSDP_SEARCH_WRAP])
    add_units(search, space, search->base.wrap);
  else
    list_wraps(search, space, graph);
  list_expert_blocks(search, space);
  space->usual_units_count = space->units_count;
  if (!search->fixed[FSDP_SEARCH_WRAP]) list_sizes(search, space, graph, false, SEARCH_UNITS_MAX);
  fsdp_graph_destroy(graph);
  return FSDP_OK;
}

// ---- Batches

// What the options of both take at most.
#define BATCH_MAX         1000000
#define MICRO_BATCHES_MAX 1000000

// The least divisor of `number` above `divisor`; 0: there is none.
static int64_t next_divisor(int64_t number, int64_t divisor) {
  int64_t d = divisor + 1;
  for (; d * d <= number; d++)
    if (number % d == 0) return d;
  if (divisor > 0) d = fsdp_min_i64(d - 1, (number - 1) / divisor); // number / d is above `divisor`
  for (; d > 0; d--)
    if (number % d == 0) return number / d;
  return 0;
}

bool search_batch(const fsdp_search_config *search, const fsdp_search_kind *kind, int index, int64_t *batch,
                  int *micro_batches) {
  const fsdp_plan_config *base = &search->base;
  if (!kind->batch_parts || search->global_batch % kind->batch_parts) return false;
  const int64_t rank = search->global_batch / kind->batch_parts;
  const int64_t most = fsdp_min_i64(BATCH_MAX, INT32_MAX / base->seq);
  for (int64_t b = next_divisor(rank, 0); b > 0 && b <= most; b = next_divisor(rank, b)) {
    if (rank / b > MICRO_BATCHES_MAX) continue;
    if (search->fixed[FSDP_SEARCH_BATCH] && b != base->batch) continue;
    if (search->fixed[FSDP_SEARCH_MICRO_BATCHES] && rank / b != base->micro_batches) continue;
    if (index-- > 0) continue;
    *batch = b;
    *micro_batches = (int)(rank / b);
    return true;
  }
  return false;
}

// ---- Kinds

typedef struct kind_list {
  const fsdp_search_config *search;
  fsdp_search_kind *kinds;
  int count;
} kind_list;

// What a strategy's mesh looks like (plan.c): one shard group, no shards, or several groups. Context and
// expert shard weights too, unless all is whole. Where nothing does, grad_op still casts weights once a step,
// and zero1 keeps gradients whole to its end.
static bool suits(fsdp_strategy strategy, const fsdp_mesh *mesh) {
  const int data = fsdp_mesh_size(mesh, FSDP_AXIS_DATA), fsdp = fsdp_mesh_size(mesh, FSDP_AXIS_FSDP);
  const bool shards =
      fsdp * fsdp_mesh_size(mesh, FSDP_AXIS_CONTEXT) * fsdp_mesh_size(mesh, FSDP_AXIS_EXPERT) > 1;
  switch (strategy) {
  case FSDP_NO:
    return fsdp == 1;
  case FSDP_HYBRID:
    return data > 1 && shards;
  case FSDP_ZERO1:
    return shards || data == 1;
  default:
    return data == 1;
  }
}

static void add_kind(kind_list *list, const fsdp_search_kind *kind) {
  if (list->count % 64 == 0)
    list->kinds = fsdp_realloc(list->kinds, (size_t)(list->count + 64) * sizeof *list->kinds);
  list->kinds[list->count++] = *kind;
}

// With the states on the device or the host, and rows cut by tensor or not, where that makes a difference.
static void add_places(kind_list *list, const fsdp_mesh *mesh, fsdp_strategy strategy, int parts) {
  const fsdp_search_config *search = list->search;
  const fsdp_plan_config *base = &search->base;
  const bool has_host = search->profile->device != FSDP_OP_CPU && search->profile->up_rate > 0 &&
                        search->profile->host_memory_rate > 0;
  const bool rows = !search->fixed[FSDP_SEARCH_SEQUENCE_PARALLEL] && !base->sharding &&
                    !base->op_strategies && fsdp_mesh_size(mesh, FSDP_AXIS_TENSOR) > 1;
  for (int offload = 0; offload < 2; offload++) {
    const bool given = search->fixed[FSDP_SEARCH_CPU_OFFLOAD];
    if (given ? offload != base->cpu_offload : offload && !has_host) continue;
    for (int whole = 0; whole < (rows ? 2 : 1); whole++)
      add_kind(list, &(fsdp_search_kind){.mesh = *mesh,
                                         .strategy = strategy,
                                         .cpu_offload = offload,
                                         .sequence_parallel = rows ? !whole : base->sequence_parallel,
                                         .batch_parts = parts});
  }
}

static void add_kinds(kind_list *list, const fsdp_mesh *mesh) {
  static const fsdp_strategy order[] = {FSDP_FULL, FSDP_HYBRID, FSDP_GRAD_OP, FSDP_ZERO1, FSDP_NO};
  const fsdp_search_config *search = list->search;
  const int data = fsdp_mesh_size(mesh, FSDP_AXIS_DATA), fsdp = fsdp_mesh_size(mesh, FSDP_AXIS_FSDP);
  const bool rules = search->base.sharding || search->base.op_strategies;
  fsdp_plan_config config = search->base;
  int parts;
  config.mesh = *mesh;
  fsdp_plan_count_batch_parts(&config, &parts, NULL); // where rules refuse a mesh its kinds have no plan
  for (size_t s = 0; s < sizeof order / sizeof *order; s++) {
    const bool fixed = search->fixed[FSDP_SEARCH_STRATEGY];
    if (fixed ? order[s] != search->base.strategy : !rules && !suits(order[s], mesh)) continue;
    if (fixed && !rules && !search->fixed[FSDP_SEARCH_MESH] && fsdp * data > 1 && !suits(order[s], mesh))
      continue;
    add_places(list, mesh, order[s], parts);
  }
}

// Axes from the outermost. Data and fsdp are there also with one rank.
enum { DATA, FSDP, CONTEXT, EXPERT, OTHERS };

// All axes but tensor in this order, and tensor before the axis `place`.
static fsdp_mesh mesh_of(const int sizes[OTHERS], int tensor, int place) {
  static const char *const names[OTHERS] = {FSDP_AXIS_DATA, FSDP_AXIS_FSDP, FSDP_AXIS_CONTEXT,
                                            FSDP_AXIS_EXPERT};
  fsdp_mesh mesh = {0};
  bool fits = true;
  for (int i = 0; i <= OTHERS; i++) {
    if (i == place && tensor > 1) fits = fits && fsdp_mesh_add(&mesh, FSDP_AXIS_TENSOR, tensor);
    if (i < OTHERS && (i <= FSDP || sizes[i] > 1)) fits = fits && fsdp_mesh_add(&mesh, names[i], sizes[i]);
  }
  FSDP_CHECK(fits, "a mesh of %d axes", mesh.count);
  fsdp_mesh_complete(&mesh);
  return mesh;
}

// Whether nodes' borders divide the groups of tensor unevenly where it is the innermost axis, and `inner`
// ranks inside it are of one node.
static bool may_be_outside(const fsdp_search_config *search, int tensor, int inner) {
  const int node = search->ranks_per_node;
  return search->ranks > node && node % tensor && tensor % node && node % inner == 0;
}

// Every division of the ranks between data and fsdp, with tensor innermost, and outside other axes that have
// ranks where it may be.
static void add_meshes(kind_list *list, int tensor, int context, int expert) {
  const fsdp_search_config *search = list->search;
  const int left = search->ranks / (tensor * context * expert);
  const bool rules = search->base.sharding || search->base.op_strategies;
  for (int data = 1; data <= left; data++) {
    if (left % data || (!rules && search->global_batch % (left * expert))) continue;
    const int sizes[OTHERS] = {[DATA] = data, [FSDP] = left / data, [CONTEXT] = context, [EXPERT] = expert};
    int inner = 1;
    for (int place = OTHERS; place >= 0; place--) {
      if (place < OTHERS) inner *= sizes[place];
      if (place < OTHERS && (sizes[place] == 1 || !may_be_outside(search, tensor, inner))) continue;
      const fsdp_mesh mesh = mesh_of(sizes, tensor, place);
      add_kinds(list, &mesh);
    }
  }
}

// Whether the ranks with one context each divide a step's sequences, whole.
static bool divides_sequences(const fsdp_search_config *search, int context) {
  return search->ranks % context == 0 && search->global_batch % (search->ranks / context) == 0;
}

// The least rows of a rank where sequences are too few for the ranks.
static int64_t least_rows(const fsdp_search_config *search) {
  const int64_t parts = fsdp_max_i64(1, search->base.seq / CONTEXT_ROWS_LEAST);
  const bool all_used = search->global_batch * parts * search->base.model.num_heads >= search->ranks;
  return all_used ? CONTEXT_ROWS_LEAST : 1;
}

// Fewer rows than usual as long as sequences are too few for the ranks with half of the context, or no
// smaller context divides them.
static bool is_context_tried(const fsdp_search_config *search, int context) {
  if (search->fixed_context) return context == search->fixed_context;
  bool lacks_sequences = true;
  for (int c = 1; c < context && lacks_sequences; c++) lacks_sequences = !divides_sequences(search, c);
  lacks_sequences = lacks_sequences || context * search->global_batch < 2 * (int64_t)search->ranks;
  const int64_t rows = lacks_sequences ? least_rows(search) : CONTEXT_ROWS;
  return context == 1 || context * rows <= search->base.seq;
}

// Each with heads of its own. Of more ranks some have none, and what they send of rows grows with them: tried
// where a layer's rows are few beside the weights that as many ranks as heads gather.
static bool is_tensor_tried(const fsdp_search_config *search, const search_space *space, int tensor) {
  const fsdp_model_config *model = &search->base.model;
  if (search->base.op_strategies && tensor > 1) return false;
  if (search->fixed_tensor) return tensor == search->fixed_tensor;
  const double tokens = (double)(search->global_batch * search->base.seq) * tensor / search->ranks;
  const double weights = (double)space->layer_params / (double)model->num_heads;
  return tensor <= model->num_heads || tokens * (double)model->hidden_size < TENSOR_ROWS * weights;
}

// Inside a node, over which rows are gathered at its rate.
static bool is_expert_tried(const fsdp_search_config *search, int expert) {
  if (search->fixed_expert) return expert == search->fixed_expert;
  return expert == 1 || (expert <= search->base.model.experts && search->ranks_per_node % expert == 0 &&
                         !search->base.sharding && !search->base.op_strategies);
}

fsdp_search_kind *search_kinds_create(const fsdp_search_config *search, const search_space *space,
                                      int *count) {
  kind_list list = {.search = search};
  if (search->fixed[FSDP_SEARCH_MESH]) add_kinds(&list, &search->base.mesh);
  for (int tensor = 1; tensor <= search->ranks && !search->fixed[FSDP_SEARCH_MESH]; tensor++) {
    if (search->ranks % tensor || !is_tensor_tried(search, space, tensor)) continue;
    for (int context = 1; context <= search->ranks / tensor; context++) {
      if (!is_context_tried(search, context)) continue;
      for (int expert = 1; expert <= search->ranks / tensor / context; expert++)
        if (is_expert_tried(search, expert) && search->ranks % (tensor * context * expert) == 0)
          add_meshes(&list, tensor, context, expert);
    }
  }
  *count = list.count;
  return list.kinds;
}
