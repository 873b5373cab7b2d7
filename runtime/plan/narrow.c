#include "runtime/plan/narrow.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <stdlib.h>
#include <string.h>

enum {
  AXIS_MOST = 3,  // ranks of an axis that is left as it is
  RANKS_MAX = 16, // of the twin's mesh, where its axes allow it
  SETS_MAX = 64,  // of axes that cut a dimension together
  CUTS_MAX = 2 * SETS_MAX,
  SEQ_LEAST = 12, // tokens, and those of sequences that are left as they are
  SEQ_KEPT = 24,
  BATCH_MOST = 2,
  ROWS_CHUNKED = 1040,    // of a rank: more than a chunk of any head
  MICRO_BATCHES_MOST = 3, // a first, one between and a last
  PREFETCH_MOST = 2,
};

typedef struct axis_sets {
  fsdp_axis_set items[SETS_MAX];
  int count;
} axis_sets;

typedef struct twin {
  const fsdp_plan *plan;
  fsdp_narrow *out;
  axis_sets sets; // that cut letters of the model, or the sequence
  int *first;     // the module of each layer, and the one behind the last
  int *layers;    // of the plan that are kept, ascending
  int layer_count;
  fsdp_graph *graph; // of the narrow model
} twin;

// ---- The mesh

static void add_set(axis_sets *sets, fsdp_axis_set set) {
  for (int i = 0; i < sets->count; i++)
    if (sets->items[i] == set) return;
  if (set && sets->count < SETS_MAX) sets->items[sets->count++] = set;
}

// A set, and the sets in it, over which something may lie on the way.
static void add_subsets(axis_sets *sets, fsdp_axis_set set) {
  for (fsdp_axis_set part = set; part; part = (part - 1) & set) add_set(sets, part);
}

static void add_spec(twin *t, const fsdp_spec *spec, fsdp_axis_set except) {
  for (int d = 0; d < spec->dims; d++)
    add_subsets(&t->sets, fsdp_dim_axis_set(&spec->dim[d], &t->plan->config.mesh) & ~except);
}

// Axes of the batch cut whole sequences, and weights flat, which are padded: they divide nothing.
static void find_sets(twin *t) {
  const fsdp_specs *specs = t->plan->specs;
  const fsdp_graph *g = t->plan->graph;
  const fsdp_mesh *mesh = &t->plan->config.mesh;
  fsdp_axis_set flat = fsdp_spec_axes(&specs->input, mesh),
                batch = fsdp_dim_axis_set(&specs->input.dim[0], mesh);
  add_spec(t, &specs->input, batch);
  for (int p = 0; p < g->param_count; p++) add_spec(t, &specs->params[p], flat);
  for (int m = 0; m < g->module_count; m++)
    for (int i = 0; i < g->modules[m].output_count; i++) add_spec(t, &specs->outputs[m][i], batch);
}

static fsdp_narrow_cuts cuts_of(const twin *t, const fsdp_mesh *mesh, int64_t times,
                                fsdp_narrow_cut items[CUTS_MAX]) {
  fsdp_narrow_cuts cuts = {.items = items};
  for (int i = 0; i < t->sets.count; i++)
    for (int64_t by = 1; by <= times; by++)
      items[cuts.count++] =
          (fsdp_narrow_cut){by * fsdp_mesh_group_size(&t->plan->config.mesh, t->sets.items[i]),
                            by * fsdp_mesh_group_size(mesh, t->sets.items[i])};
  return cuts;
}

// Sets model and sequence of the twin on a mesh; returns how many facts differ.
static int narrow_on(const twin *t, const fsdp_mesh *mesh, fsdp_plan_config *out) {
  const fsdp_plan_config *c = &t->plan->config;
  fsdp_narrow_cut items[CUTS_MAX];
  out->mesh = *mesh;
  // Context parallelism gives each rank two chunks.
  fsdp_narrow_cuts cuts = cuts_of(t, mesh, 2, items);
  int count = fsdp_narrow_size(c->seq, c->seq <= SEQ_KEPT ? c->seq : SEQ_LEAST, &cuts, &out->seq);
  cuts = cuts_of(t, mesh, 1, items);
  const fsdp_narrowing narrowing = {.cuts = cuts,
                                    .layers = t->layers,
                                    .layer_count = t->layer_count,
                                    .seq = c->seq,
                                    .narrow_seq = out->seq};
  return count + fsdp_model_narrow(&c->model, &narrowing, &out->model);
}

// Tries sizes of the axes from `axis` on; *least is the cost of what is in t->out so far, below 0: nothing.
static void try_sizes(twin *t, fsdp_mesh *mesh, int axis, int odd_changes, int64_t *least) {
  const fsdp_mesh *given = &t->plan->config.mesh;
  if (axis == given->count) {
    fsdp_plan_config tried = t->out->config;
    int64_t ranks = fsdp_mesh_ranks(mesh);
    int64_t cost = 10 * (int64_t)narrow_on(t, mesh, &tried) + 5 * odd_changes + ranks +
                   100 * fsdp_max_i64(0, ranks - RANKS_MAX);
    if (*least >= 0 && cost >= *least) return;
    *least = cost;
    t->out->config = tried;
    return;
  }
  int size = given->axes[axis].size, most = size <= AXIS_MOST ? size : AXIS_MOST + 1;
  for (int tried = size == 1 ? 1 : 2; tried <= most; tried++) {
    mesh->axes[axis].size = tried;
    try_sizes(t, mesh, axis + 1, odd_changes + (tried % 2 != size % 2), least);
  }
}

// ---- Layers

static bool same_spec(const twin *t, const fsdp_spec *a, const fsdp_spec *b) {
  bool same = a->dims == b->dims;
  for (int d = 0; d < a->dims && same; d++)
    same = fsdp_dim_axes_equal(&a->dim[d], &b->dim[d], &t->plan->config.mesh);
  return same;
}

static bool lie_alike(const twin *t, int a, int b) {
  const fsdp_specs *specs = t->plan->specs;
  const fsdp_module *modules = t->plan->graph->modules;
  bool same = true;
  for (int m = 0; m < t->first[a + 1] - t->first[a] && same; m++) {
    int first = t->first[a] + m, second = t->first[b] + m;
    for (int i = 0; i < modules[first].output_count && same; i++)
      same = same_spec(t, &specs->outputs[first][i], &specs->outputs[second][i]);
    for (int p = 0; p < modules[first].param_count && same; p++)
      same = same_spec(t, &specs->params[modules[first].first_param + p],
                       &specs->params[modules[second].first_param + p]);
  }
  return same;
}

// Whether layer `b` is one more of the kind of `a`: placements, window, and what is saved.
static bool is_alike(const twin *t, int a, int b) {
  const fsdp_plan_config *c = &t->plan->config;
  int64_t window = c->model.first_window_layer;
  bool same = (a < window) == (b < window);
  same = same && fsdp_model_has_experts(&c->model, a) == fsdp_model_has_experts(&c->model, b);
  for (int r = 0; r < c->saving.count; r++) {
    int layers = c->saving.rules[r].layers;
    same = same && (!layers || (a < layers) == (b < layers));
  }
  return same && lie_alike(t, a, b);
}

static void choose_layers(twin *t) {
  const fsdp_graph *g = t->plan->graph;
  const fsdp_plan_config *narrow = &t->out->config;
  // What comes back from the host `prefetch` layers ahead is kept in as many: one more must be offloaded.
  const bool more = fsdp_saving_offloads(&narrow->saving) && narrow->prefetch > 1;
  int kept = more ? narrow->prefetch + 1 : 2, run = 0, block = 0;
  t->first = fsdp_alloc((size_t)(g->block_count + 1) * sizeof *t->first);
  for (int m = 0; m < g->module_count; m++) {
    if (fsdp_graph_layer_of(g, m) == m) t->first[block++] = m;
    if (block && fsdp_graph_module_within(g, m, t->first[block - 1])) t->first[block] = m + 1;
  }
  FSDP_CHECK(block == g->block_count, "%d of %d layers", block, g->block_count);
  t->layers = fsdp_alloc((size_t)g->block_count * sizeof *t->layers);
  for (int layer = 0; layer < g->block_count; layer++) {
    run = layer > 0 && is_alike(t, layer - 1, layer) ? run + 1 : 1;
    if (run <= kept) t->layers[t->layer_count++] = layer;
  }
}

static void narrow_saving(const twin *t) {
  fsdp_saving *saving = &t->out->config.saving;
  for (int r = 0; r < saving->count; r++) {
    int given = saving->rules[r].layers, layers = 0;
    for (int i = 0; i < t->layer_count; i++) layers += t->layers[i] < given;
    saving->rules[r].layers = layers; // of none, that is 0 for all, it was too: the first layer is kept
  }
}

// ---- Placements and units

// The plan's module that one of the narrow graph stands for.
static int module_of(const twin *t, int module) {
  int within = module - t->first[0];
  if (within < 0) return module;
  for (int i = 0; i < t->layer_count; i++) {
    const int layer = t->layers[i], count = t->first[layer + 1] - t->first[layer];
    if (within < count) return t->first[layer] + within;
    within -= count;
  }
  return module - t->graph->module_count + t->plan->graph->module_count;
}

// `dims` are those of the spec, or what it was asked to be.
static fsdp_shard_rule *add_rule(twin *t, const char *name, const fsdp_spec *spec,
                                 const fsdp_dim_axes *dims) {
  fsdp_sharding *sharding = &t->out->sharding;
  fsdp_shard_rule *rule = &sharding->rules[sharding->rule_count++];
  *rule = (fsdp_shard_rule){.output = -1, .dims = spec->dims};
  snprintf(rule->name, sizeof rule->name, "%s", name);
  snprintf(rule->place, sizeof rule->place, "%s", *spec->place ? spec->place : "the plan");
  for (int d = 0; d < spec->dims; d++) {
    for (int i = 0; i < dims[d].count; i++) {
      fsdp_rule_dim *dim = &rule->dim[d];
      snprintf(dim->axes[dim->count++], sizeof dim->axes[0], "%s",
               t->plan->config.mesh.axes[dims[d].axes[i]].name);
    }
  }
  return rule;
}

// What a user or a preset says of an output; of others the plan's specs say how they came to lie, which is
// more than a rule can: the same follows in the twin as in the plan.
static void add_output_rule(twin *t, const char *path, int module, int output, bool is_one) {
  const fsdp_spec *spec = &t->plan->specs->outputs[module][output];
  if (spec->source < FSDP_SPEC_PRESET) return;
  const bool is_preset = spec->source == FSDP_SPEC_PRESET;
  fsdp_shard_rule *rule = add_rule(t, path, spec, is_preset && output == 0 ? spec->asked : spec->dim);
  rule->is_preset = is_preset;
  if (!is_one) rule->output = output;
}

// A line for every weight, as the plan has it, and for outputs that have one.
static void add_rules(twin *t) {
  const fsdp_graph *g = t->graph;
  const fsdp_specs *specs = t->plan->specs;
  size_t most = 1 + (size_t)g->param_count + FSDP_MODULE_MAX_OUTPUTS * (size_t)g->module_count;
  t->out->sharding.rules = fsdp_alloc_zeroed(most, sizeof *t->out->sharding.rules);
  add_rule(t, "input", &specs->input, specs->input.dim);
  for (int m = 0; m < g->module_count; m++) {
    const fsdp_module *module = &g->modules[m], *source = &t->plan->graph->modules[module_of(t, m)];
    char path[FSDP_NAME_BYTES];
    FSDP_CHECK(!strcmp(module->class_name, source->class_name), "%s stands for %s", module->class_name,
               source->class_name);
    fsdp_graph_module_path(g, m, path);
    for (int p = 0; p < module->param_count; p++) {
      const fsdp_spec *spec = &specs->params[source->first_param + p];
      add_rule(t, g->params[module->first_param + p].name, spec, spec->dim);
    }
    for (int i = 0; i < module->output_count; i++)
      add_output_rule(t, path, module_of(t, m), i, module->output_count == 1);
  }
  t->out->config.sharding = &t->out->sharding;
}

static void choose_wrapped(twin *t) {
  char *wrapped = t->out->wrapped = fsdp_alloc_zeroed((size_t)t->graph->module_count + 1, 1);
  for (int m = 0; m < t->graph->module_count; m++)
    wrapped[m] = t->plan->units->unit_of_module[module_of(t, m)] >= 0 ? '1' : '0';
  t->out->config.wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_CHOSEN, .classes = wrapped};
}

// ---- Options

static fsdp_plan_config narrow_options(const fsdp_plan_config *given) {
  fsdp_plan_config c = *given;
  c.micro_batches = (int)fsdp_min_i64(c.micro_batches, MICRO_BATCHES_MOST);
  c.prefetch = (int)fsdp_min_i64(c.prefetch, PREFETCH_MOST);
  c.op_strategies = NULL;
  c.param_dtype = c.reduce_dtype = c.master_dtype = c.moment_dtype = FSDP_F32;
  c.norm_limit = 0; // is of the model's size
  // A smaller one lets what rounding leaves of a gradient of zero move a weight as far as any other, and a
  // larger one weights themselves.
  c.hyper.eps = c.hyper.eps > 1e-5f ? c.hyper.eps : 1e-5f;
  c.hyper.weight_decay = c.hyper.weight_decay < 0.1f ? c.hyper.weight_decay : 0.1f;
  c.evaluation = true;
  c.check = c.snapshot = c.draft = c.peaks = false;
  c.limits = (fsdp_memory_limits){0};
  c.backend = fsdp_plan_backend_cpu();
  c.gpu = (fsdp_op_gpu){0};
  return c;
}

// A head whose vocabulary is cut takes its rows in chunks, by instructions of the plan: in the twin, too.
// Where only the batch is cut, its chunks are one kernel's.
static void narrow_batch(const twin *t) {
  const fsdp_plan_config *c = &t->plan->config;
  fsdp_plan_config *out = &t->out->config;
  int64_t rows = c->batch * t->plan->rows.local_seq;
  int64_t chunk = fsdp_op_chunk_rows(c->backend->device, rows, c->model.vocab_size, FSDP_F32);
  fsdp_axis_set context = fsdp_dim_axis_set(&t->plan->specs->input.dim[1], &c->mesh);
  out->batch = fsdp_min_i64(c->batch, BATCH_MOST);
  if (chunk < rows && t->sets.count)
    out->batch = ROWS_CHUNKED * fsdp_mesh_group_size(&out->mesh, context) / out->seq + 1;
}

fsdp_narrow *fsdp_narrow_create(const fsdp_plan *plan) {
  twin t = {.plan = plan, .out = fsdp_alloc_zeroed(1, sizeof *t.out)};
  fsdp_mesh mesh = plan->config.mesh;
  int64_t least = -1;
  t.out->config = narrow_options(&plan->config);
  choose_layers(&t);
  narrow_saving(&t);
  find_sets(&t);
  try_sizes(&t, &mesh, 0, 0, &least);
  narrow_batch(&t);
  t.graph = fsdp_model_forward(&t.out->config.model, t.out->config.batch, t.out->config.seq);
  add_rules(&t);
  choose_wrapped(&t);
  fsdp_graph_destroy(t.graph);
  t.out->layers = t.layers;
  free(t.first);
  return t.out;
}

void fsdp_narrow_destroy(fsdp_narrow *narrow) {
  if (!narrow) return;
  free(narrow->sharding.rules);
  free(narrow->wrapped);
  free(narrow->layers);
  free(narrow);
}

fsdp_plan_config fsdp_narrow_alone(const fsdp_plan *plan) {
  fsdp_plan_config c = plan->config;
  int part;
  const int parts = fsdp_plan_batch_part(plan, 0, &part);
  const bool of_sequences = c.model.router_aux == FSDP_ROUTER_AUX_SEQUENCE || c.model.router_aux_coef <= 0;
  if (of_sequences && c.model.router_z_coef <= 0) {
    c.batch *= c.micro_batches * (int64_t)parts;
    c.micro_batches = 1;
  } else if (c.model.router_aux == FSDP_ROUTER_AUX_RANK) {
    c.micro_batches *= parts;
  } else {
    c.batch *= parts;
  }
  c.strategy = FSDP_FULL;
  c.mesh = fsdp_mesh_of(1, 1);
  c.sharding = NULL;
  c.wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_NONE};
  c.cpu_offload = c.exchange = c.poison = false;
  c.saving = (fsdp_saving){0};
  c.prefetch = c.expert_blocks = 0;
  c.accumulate = FSDP_ACCUMULATE_REDUCE;
  return c;
}
