#include "runtime/plan/search/estimate.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/price/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// All layers are alike, so in a steady state every one adds the same time, and what
// lives at a place of the program (counted in layers from the model's beginning or from its end) grows by the
// same bytes. Two drafts, of n and n + 1 layers, give both.

// Layers of the smaller draft, beside those that are gathered ahead, and how many more the larger one has.
typedef struct sizes {
  int layers, more;
} sizes;

static const sizes few_layers = {2, 1}, several_layers = {6, 4};

// Places in the layers of a draft: before them, the first ones, the last ones, after them.
#define PLACES_MAX 16
#define PHASES     (FSDP_SECTION_EVALUATION * 2)

typedef struct peaks {
  int64_t bytes[FSDP_SPACE_COUNT][PHASES * PLACES_MAX];
} peaks;

typedef struct draft {
  fsdp_evaluation estimate; // of this number of layers; bytes: what lies beside the device's arena
  double resource_s[FSDP_RESOURCE_COUNT];
  int64_t peak_bytes[FSDP_SPACE_COUNT];
  peaks peaks; // of few layers
} draft;

// ---- Memory

// By module: its decoder layer, or -1.
static int *layers_of_modules(const fsdp_graph *graph) {
  int *layer = fsdp_alloc((size_t)graph->module_count * sizeof *layer), count = 0;
  for (int m = 0; m < graph->module_count; m++) {
    const int parent = graph->modules[m].parent;
    if (strcmp(graph->modules[m].class_name, graph->block_class) == 0)
      layer[m] = count++;
    else
      layer[m] = parent >= 0 ? layer[parent] : -1;
  }
  return layer;
}

// The layer that computes at a position, or -1.
static int layer_at(const fsdp_plan *plan, const int *layer_of, const fsdp_instr *instr) {
  if (instr->kind != FSDP_INSTR_OP || instr->stream != FSDP_STREAM_COMPUTE) return -1;
  if (instr->module >= 0) return layer_of[instr->module];
  return instr->unit >= 0 ? layer_of[plan->units->units[instr->unit].module] : -1;
}

static int place_of(int layer, int layers, int front, bool passed) {
  if (layer < 0) return passed ? 1 : 0;
  return layer < front ? 2 + layer : 2 + front + (layers - 1 - layer);
}

// `front` layers are counted from the model's beginning, the others from its end.
static void find_peaks(const fsdp_plan *plan, int layers, int front, peaks *p) {
  const fsdp_program *program = plan->program;
  int *layer_of = layers_of_modules(plan->graph);
  int64_t *live[FSDP_SPACE_COUNT];
  memset(p, 0, sizeof *p);
  for (int space = 0; space < FSDP_SPACE_COUNT; space++)
    live[space] = fsdp_memory_live(program, (fsdp_space)space, false);
  for (int s = 0; s < program->section_count; s++) {
    const fsdp_section *section = &program->sections[s];
    if (section->kind >= FSDP_SECTION_EVALUATION) continue;
    const int turn = fsdp_program_backward_begin(program, section);
    bool passed = false;
    int layer = -1;
    for (int i = section->begin; i < section->end; i++) {
      const fsdp_instr *instr = &program->instrs[i];
      if (i == turn) passed = false, layer = -1;
      if (instr->kind == FSDP_INSTR_OP && instr->stream == FSDP_STREAM_COMPUTE)
        layer = layer_at(plan, layer_of, instr);
      passed |= layer >= 0;
      const int place = place_of(layer, layers, front, passed);
      if (place >= PLACES_MAX) continue;
      const int index = ((int)section->kind * 2 + (i >= turn)) * PLACES_MAX + place;
      for (int space = 0; space < FSDP_SPACE_COUNT; space++)
        p->bytes[space][index] = fsdp_max_i64(p->bytes[space][index], live[space][i]);
    }
  }
  for (int space = 0; space < FSDP_SPACE_COUNT; space++) free(live[space]);
  free(layer_of);
}

// The greatest of the places' bytes in a model of `more` times as many layers beyond those of `b` as `b` has
// beyond those of `a`.
static int64_t greatest_extended(const peaks *a, const peaks *b, fsdp_space space, double more) {
  int64_t most = 0;
  for (int i = 0; i < PHASES * PLACES_MAX; i++) {
    const int64_t one = b->bytes[space][i] - a->bytes[space][i];
    const bool matched = a->bytes[space][i] > 0 && b->bytes[space][i] > 0;
    most = fsdp_max_i64(most, b->bytes[space][i] + (matched ? (int64_t)(more * (double)one) : 0));
  }
  return most;
}

// ---- Time

// Seconds alone: of the longest path, in all and of layers alone; of updates on the host; of each resource,
// and of collectives over `tensor` and `context` alone.
typedef struct load {
  double path_s, layers_s, update_s, resource_s[FSDP_RESOURCE_COUNT], axes_s[FSDP_RESOURCE_COUNT];
} load;

// Of an instruction's seconds those that remain whatever the wrap, the accumulation and the prefetch: reading
// gradients that are added to, or wider than their reduction, and zeroing between parameters may not.
static double least_seconds(const fsdp_pricing *pricing, const fsdp_simulation *simulation, int position) {
  const fsdp_program *program = pricing->plan->program;
  const fsdp_instr *instr = &program->instrs[position];
  const fsdp_operand *operands = &program->operands[instr->first_operand];
  const double seconds = fsdp_simulation_price_of(simulation, position)->seconds;
  const double narrow = (double)fsdp_dtype_bytes(pricing->plan->config.reduce_dtype);
  double all = 0, added = 0, wider = 0;
  if (instr->kind != FSDP_INSTR_OP || seconds <= 0) return seconds;
  if (instr->op == FSDP_PLAN_OP_ZERO) return 0;
  for (int o = 0; o < instr->operand_count; o++) {
    const double bytes = (double)operands[o].size_bytes;
    const bool adds = operands[o].access == FSDP_UPDATE;
    all += adds ? 2 * bytes : bytes;
    if (program->tensors[operands[o].tensor].category != FSDP_CATEGORY_GRADIENTS) continue;
    added += adds ? bytes : 0;
    wider += fmax(0, 1 - narrow / (double)fsdp_dtype_bytes(operands[o].dtype)) * bytes;
  }
  if (!fsdp_op_makes_gemms(instr->op)) return seconds * (1 - (added + wider) / all);
  if (added <= 0) return seconds;
  return fmax(0, seconds - fsdp_profile_added_s(pricing->profile, pricing->ranks_per_node, instr->op, added));
}

static bool is_of_layers(fsdp_stream stream) {
  return stream == FSDP_STREAM_COMPUTE || stream == FSDP_STREAM_TENSOR || stream == FSDP_STREAM_CONTEXT;
}

static void add_seconds(const fsdp_pricing *pricing, const fsdp_simulation *simulation, int begin, int end,
                        load *sum) {
  const fsdp_plan *plan = pricing->plan;
  for (int i = begin; i < end; i++) {
    const fsdp_instr *instr = &plan->program->instrs[i];
    const fsdp_price *price = fsdp_simulation_price_of(simulation, i);
    const bool updates = instr->kind == FSDP_INSTR_OP && instr->op == plan->optimizer->update;
    if (instr->stream == FSDP_STREAM_HOST && updates) sum->update_s += least_seconds(pricing, simulation, i);
    for (int r = 0; r < FSDP_RESOURCE_COUNT; r++) sum->resource_s[r] += price->seconds * price->share[r];
    if (instr->stream == FSDP_STREAM_COMPUTE || !is_of_layers(instr->stream)) continue;
    for (int r = 0; r < FSDP_RESOURCE_COUNT; r++) sum->axes_s[r] += price->seconds * price->share[r];
  }
}

// Ends of paths: of all, and without what units do to weights and gradients.
typedef struct path {
  double all_s, layers_s;
} path;

static inline void begin_after(double *begin_s, double end_s) {
  if (end_s > *begin_s) *begin_s = end_s;
}

// The longest paths from the beginning of [begin, end) to the end of its last computation, over computation
// and the collectives of `tensor` and `context`. Nothing is under way at the beginning. `ends`: scratch, by
// position.
static path find_path(const fsdp_pricing *pricing, const fsdp_simulation *simulation, int begin, int end,
                      path *ends) {
  const fsdp_program *program = pricing->plan->program;
  path last[FSDP_STREAM_COUNT] = {{0, 0}};
  for (int i = begin; i < end; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    ends[i] = (path){0, 0};
    if (!is_of_layers(instr->stream)) continue;
    const bool of_layers = instr->stream != FSDP_STREAM_COMPUTE || instr->module >= 0;
    path *at = &last[instr->stream];
    for (int w = 0; w < instr->wait_count; w++) {
      const int awaited = program->waits[instr->first_wait + w].position;
      if (awaited < begin || awaited >= i) continue;
      begin_after(&at->all_s, ends[awaited].all_s);
      if (of_layers) begin_after(&at->layers_s, ends[awaited].layers_s);
    }
    const double seconds = least_seconds(pricing, simulation, i);
    ends[i].all_s = at->all_s += seconds;
    if (of_layers) ends[i].layers_s = at->layers_s += seconds;
  }
  return last[FSDP_STREAM_COMPUTE];
}

// What a step takes at least. With clipping, updates on the host start after the last backward, and all
// weights are updated before the first forward ends. Links carry what they must whatever overlaps.
static void find_floors(const fsdp_pricing *pricing, const fsdp_simulation *simulation, draft *out) {
  const fsdp_plan *plan = pricing->plan;
  const fsdp_program *program = plan->program;
  int *order = fsdp_alloc((size_t)(program->micro_batches + 1) * sizeof *order);
  path *ends = fsdp_alloc((size_t)program->instr_count * sizeof *ends);
  const int runs = fsdp_program_step_order(program, order);
  load section[FSDP_MAX_SECTIONS] = {{0}}, sum = {0};
  double forward_s = 0;
  for (int s = 0; s < program->section_count; s++) {
    const fsdp_section *at = &program->sections[s];
    if (at->kind >= FSDP_SECTION_EVALUATION) continue;
    const int turn = fsdp_program_backward_begin(program, at);
    add_seconds(pricing, simulation, at->begin, at->end, &section[s]);
    const path first = find_path(pricing, simulation, at->begin, turn, ends);
    const path second = find_path(pricing, simulation, turn, at->end, ends);
    section[s].path_s = first.all_s + second.all_s;
    section[s].layers_s = first.layers_s + second.layers_s;
    if (s == order[0]) forward_s = first.all_s;
  }
  for (int i = 0; i < runs; i++) {
    const load *run = &section[order[i]];
    sum.path_s += run->path_s;
    sum.layers_s += run->layers_s;
    sum.update_s += run->update_s;
    for (int r = 0; r < FSDP_RESOURCE_COUNT; r++) sum.resource_s[r] += run->resource_s[r];
    for (int r = 0; r < FSDP_RESOURCE_COUNT; r++) sum.axes_s[r] += run->axes_s[r];
  }
  out->estimate.work_s = plan->config.grad_clip > 0 ? sum.path_s + fmax(0, sum.update_s - forward_s)
                                                    : fmax(sum.path_s, sum.update_s);
  out->estimate.layers_s = sum.layers_s;
  out->estimate.axes_node_s = sum.axes_s[FSDP_RESOURCE_NODE];
  out->estimate.axes_network_s = sum.axes_s[FSDP_RESOURCE_NETWORK];
  memcpy(out->resource_s, sum.resource_s, sizeof out->resource_s);
  free(ends);
  free(order);
}

// What the busiest link takes.
static double busiest_s(const double resource_s[FSDP_RESOURCE_COUNT]) {
  static const fsdp_resource links[] = {FSDP_RESOURCE_NODE, FSDP_RESOURCE_NETWORK, FSDP_RESOURCE_UP,
                                        FSDP_RESOURCE_DOWN};
  double most = 0;
  for (size_t l = 0; l < sizeof links / sizeof *links; l++) most = fmax(most, resource_s[links[l]]);
  return most;
}

// `front`: of few layers, so many are counted from the model's beginning; of all: 0.
static fsdp_status make_draft(const fsdp_estimator *e, const fsdp_plan_config *config, int front,
                              draft *out) {
  fsdp_plan *plan;
  fsdp_pricing pricing;
  ++*e->drafts;
  fsdp_status status = fsdp_plan_create_among(config, e->recent, &plan, NULL);
  if (status) return status;
  status = fsdp_pricing_create(plan, e->profile, e->ranks_per_node, &pricing, NULL);
  if (status == FSDP_OK) {
    fsdp_step_price price;
    fsdp_simulation *simulation = fsdp_simulation_create(&pricing);
    fsdp_simulation_run(simulation, &price);
    out->estimate = (fsdp_evaluation){.step_s = price.step_s,
                                      .comm_s = price.comm_s,
                                      .copies_s = price.h2d_s + price.d2h_s,
                                      .update_s = price.kind_s[FSDP_PRICE_UPDATE],
                                      .bytes = {[FSDP_SPACE_DEVICE] = fsdp_plan_reserve_bytes(plan)}};
    find_floors(&pricing, simulation, out);
    out->estimate.links_s = busiest_s(out->resource_s);
    fsdp_step_price_release(&price);
    fsdp_simulation_destroy(simulation);
    for (int s = 0; s < FSDP_SPACE_COUNT; s++) out->peak_bytes[s] = plan->memory.space[s].peak_bytes;
    if (front > 0) find_peaks(plan, (int)config->model.num_layers, front, &out->peaks);
  }
  fsdp_plan_destroy(plan);
  return status;
}

static double extended(double a, double b, double more) {
  return fmax(b + more * (b - a), 0);
}

// Whether the model's layers are alike.
static bool is_uniform(const fsdp_model_config *model) {
  const int64_t routed = fsdp_model_expert_layers(model);
  if (routed > 0 && routed < model->num_layers) return false;
  return model->window == 0 || model->first_window_layer == 0 ||
         model->first_window_layer >= model->num_layers;
}

fsdp_status fsdp_estimate_whole(const fsdp_estimator *e, const fsdp_plan_config *config,
                                fsdp_evaluation *out) {
  fsdp_plan_config drafted = *config;
  draft whole;
  drafted.draft = true;
  fsdp_status status = make_draft(e, &drafted, 0, &whole);
  if (status) return status;
  *out = whole.estimate;
  for (int s = 0; s < FSDP_SPACE_COUNT; s++) out->bytes[s] += whole.peak_bytes[s];
  return FSDP_OK;
}

static fsdp_status estimate_extended(const fsdp_estimator *e, const fsdp_plan_config *config, sizes drafted,
                                     fsdp_evaluation *estimate) {
  const int64_t all = config->model.num_layers;
  const int few = drafted.layers + config->prefetch, front = few / 2, gap = drafted.more;
  if (!is_uniform(&config->model) || fsdp_saving_has_parts(&config->saving) || all <= few + gap ||
      few + gap + 2 > PLACES_MAX)
    return fsdp_estimate_whole(e, config, estimate);
  fsdp_plan_config small = *config;
  draft a, b;
  small.draft = true;
  if (small.model.first_window_layer >= all) small.model.first_window_layer = few + gap;
  small.model.num_layers = few;
  fsdp_status status = make_draft(e, &small, front, &a);
  small.model.num_layers = few + gap;
  if (status == FSDP_OK) status = make_draft(e, &small, front, &b);
  if (status) return status;
  const double more = (double)(all - few - gap) / gap;
  const fsdp_evaluation *x = &a.estimate, *y = &b.estimate;
  double resource_s[FSDP_RESOURCE_COUNT]; // another link may be the busiest of more layers
  for (int r = 0; r < FSDP_RESOURCE_COUNT; r++)
    resource_s[r] = extended(a.resource_s[r], b.resource_s[r], more);
  *estimate = (fsdp_evaluation){.step_s = extended(x->step_s, y->step_s, more),
                                .work_s = extended(x->work_s, y->work_s, more),
                                .layers_s = extended(x->layers_s, y->layers_s, more),
                                .axes_node_s = extended(x->axes_node_s, y->axes_node_s, more),
                                .axes_network_s = extended(x->axes_network_s, y->axes_network_s, more),
                                .links_s = busiest_s(resource_s),
                                .comm_s = extended(x->comm_s, y->comm_s, more),
                                .copies_s = extended(x->copies_s, y->copies_s, more),
                                .update_s = extended(x->update_s, y->update_s, more)};
  // Of few layers copies and collectives may not be in each other's way yet.
  estimate->step_s = fmax(estimate->step_s, fmax(estimate->work_s, estimate->links_s));
  for (int s = 0; s < FSDP_SPACE_COUNT; s++)
    estimate->bytes[s] = y->bytes[s] + greatest_extended(&a.peaks, &b.peaks, (fsdp_space)s, more);
  return FSDP_OK;
}

fsdp_status fsdp_estimate_few(const fsdp_estimator *estimator, const fsdp_plan_config *config,
                              fsdp_evaluation *out) {
  return estimate_extended(estimator, config, few_layers, out);
}

fsdp_status fsdp_estimate_several(const fsdp_estimator *estimator, const fsdp_plan_config *config,
                                  fsdp_evaluation *out) {
  return estimate_extended(estimator, config, several_layers, out);
}

fsdp_evaluation fsdp_estimate_between(const fsdp_evaluation *none, const fsdp_evaluation *all, int layers,
                                      int of) {
  const double part = (double)layers / of;
  fsdp_evaluation e = {.step_s = none->step_s + part * (all->step_s - none->step_s),
                       .work_s = none->work_s + part * (all->work_s - none->work_s),
                       .links_s = none->links_s + part * (all->links_s - none->links_s),
                       .comm_s = none->comm_s + part * (all->comm_s - none->comm_s),
                       .copies_s = none->copies_s + part * (all->copies_s - none->copies_s),
                       .update_s = none->update_s + part * (all->update_s - none->update_s)};
  for (int s = 0; s < FSDP_SPACE_COUNT; s++)
    e.bytes[s] = none->bytes[s] + (int64_t)(part * (double)(all->bytes[s] - none->bytes[s]));
  return e;
}
