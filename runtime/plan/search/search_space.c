#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/program/saved.h"
#include "runtime/plan/search/search_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// The least positions of a rank under context parallelism; the second where ranks have no other use. One
// position is allowed where the alternative is tensor parallelism of more ranks than heads.
#define CONTEXT_ROWS       256
#define CONTEXT_ROWS_LEAST 16
// With more ranks of tensor than heads: the least elements of a layer's rows, as a multiple of the weights of
// a rank where ranks are as many as heads. Both are sent about as often.
#define TENSOR_ROWS 4

// ---- Units

// Whether no unit but the root's holds matrices of two layers, and the root's of none.
static bool keeps_layers_apart(const fsdp_units *units, const fsdp_graph *graph) {
  for (int u = 0; u < units->count; u++) {
    const fsdp_unit *unit = &units->units[u];
    for (int i = 0; i < unit->param_count; i++) {
      const int param = units->params[unit->first_param + i].param;
      const int layer = fsdp_graph_layer_of(graph, graph->params[param].module);
      if (graph->params[param].dims < 2 || layer < 0) continue;
      if (!fsdp_graph_module_within(graph, unit->module, layer)) return false;
    }
  }
  return true;
}

static int64_t module_params(const fsdp_graph *graph, int module) {
  int64_t sum = 0;
  for (int p = 0; p < graph->param_count; p++)
    if (fsdp_graph_module_within(graph, graph->params[p].module, module)) sum += graph->params[p].numel;
  return sum;
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
  int64_t layers = 2; // or as many as there are to the first with experts
  while (layers < small.num_layers && small.experts && !fsdp_model_has_experts(&small, layers - 1)) layers++;
  small.num_layers = fsdp_min_i64(small.num_layers, layers);
  fsdp_status status = fsdp_model_check_seq(&small, search->base.seq, error);
  if (status) return status;
  *space = (search_space){.chains = fsdp_alloc_zeroed(SEARCH_CHAINS_MAX, sizeof *space->chains),
                          .params = fsdp_model_parameter_count(&search->base.model)};
  fsdp_graph *graph = fsdp_model_graph(&small, 1, search->base.seq);
  for (int m = 0; m < graph->module_count && !space->layer_params; m++)
    if (fsdp_graph_layer_of(graph, m) == m) space->layer_params = module_params(graph, m);
  space->value_bytes = largest_value_bytes(graph, search->base.param_dtype);
  search_list_chains(search, space, graph);
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

void search_space_release(search_space *space) {
  free(space->chains);
  space->chains = NULL;
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

fsdp_plan_config search_first_config(const fsdp_search_config *search, const search_space *space,
                                     const fsdp_search_kind *kind) {
  fsdp_plan_config config = search->base;
  config.mesh = kind->mesh;
  config.strategy = kind->strategy;
  config.cpu_offload = kind->cpu_offload;
  config.sequence_parallel = kind->sequence_parallel;
  search_units_set(&config, &space->units[0]);
  if (!search->fixed[FSDP_SEARCH_PREFETCH]) config.prefetch = 1;
  if (!search->fixed[FSDP_SEARCH_ACCUMULATE]) config.accumulate = search_usual_accumulation(config.strategy);
  return config;
}

int64_t search_value_bytes(const search_space *space, const fsdp_search_kind *kind, int64_t batch) {
  const double sequences = (double)batch * (double)kind->batch_parts / fsdp_mesh_ranks(&kind->mesh);
  return (int64_t)(sequences * space->value_bytes);
}

bool search_next_batch(const fsdp_search_config *search, const fsdp_evaluator *evaluator,
                       const search_space *space, const fsdp_search_kind *kind, int index,
                       fsdp_plan_config *config) {
  int64_t bytes[FSDP_SPACE_COUNT] = {0};
  if (index >= SEARCH_BATCHES_MAX ||
      !search_batch(search, kind, index, &config->batch, &config->micro_batches))
    return false;
  bytes[FSDP_SPACE_DEVICE] = search_value_bytes(space, kind, config->batch);
  return index == 0 || fsdp_excess_of(&evaluator->allowed, bytes, NULL) == 0;
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

// Axes from the outermost, as they lie but where one is moved. Data and fsdp are there also with one rank.
enum { DATA, FSDP, CONTEXT, EXPERT, TENSOR, AXES };

// The mesh with `moved` outside of the axes from `place` on; in the usual order if that is its own place.
static fsdp_mesh mesh_of(const int sizes[AXES], int moved, int place) {
  static const char *const names[AXES] = {FSDP_AXIS_DATA, FSDP_AXIS_FSDP, FSDP_AXIS_CONTEXT, FSDP_AXIS_EXPERT,
                                          FSDP_AXIS_TENSOR};
  fsdp_mesh mesh = {0};
  bool fits = true;
  for (int i = 0; i < AXES; i++) {
    const int axis = i < place || i > moved ? i : i == place ? moved : i - 1;
    if (axis <= FSDP || sizes[axis] > 1) fits = fits && fsdp_mesh_add(&mesh, names[axis], sizes[axis]);
  }
  FSDP_CHECK(fits, "a mesh of %d axes", mesh.count);
  fsdp_mesh_complete(&mesh);
  return mesh;
}

// Whether `moved`, which with the axes inside it has groups of `span` neighbours, may be outside of `between`
// ranks of one node: where nodes' borders divide these groups unevenly, or tensor's since they are longer
// than a node. Then small messages make fewer hops in a node with other ranks between.
static bool may_be_outside(const fsdp_search_config *search, int moved, int span, int between) {
  const int node = search->ranks_per_node;
  const bool uneven = node % span && span % node;
  return search->ranks > node && node % between == 0 && (uneven || (moved == TENSOR && span > node));
}

// `moved` outside of other axes that have ranks, wherever it may be.
static void add_moved(kind_list *list, const int sizes[AXES], int moved) {
  if (sizes[moved] == 1) return;
  int span = 1, between = 1;
  for (int i = moved; i < AXES; i++) span *= sizes[i];
  for (int place = moved - 1; place >= 0; place--) {
    between *= sizes[place];
    if (sizes[place] == 1 || !may_be_outside(list->search, moved, span, between)) continue;
    const fsdp_mesh mesh = mesh_of(sizes, moved, place);
    add_kinds(list, &mesh);
  }
}

// Every division of the ranks between data and fsdp.
static void add_meshes(kind_list *list, int tensor, int context, int expert) {
  const fsdp_search_config *search = list->search;
  const int left = search->ranks / (tensor * context * expert);
  const bool rules = search->base.sharding || search->base.op_strategies;
  for (int data = 1; data <= left; data++) {
    if (left % data || (!rules && search->global_batch % (left * expert))) continue;
    const int sizes[AXES] = {data, left / data, context, expert, tensor};
    const fsdp_mesh usual = mesh_of(sizes, TENSOR, TENSOR);
    add_kinds(list, &usual);
    add_moved(list, sizes, TENSOR);
    add_moved(list, sizes, CONTEXT);
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
