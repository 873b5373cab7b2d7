#include "runtime/plan/placement.h"

#include "runtime/base/check.h"
#include "runtime/plan/mesh/expert_blocks.h"
#include "runtime/plan/sharding/op_specs.h"
#include "runtime/plan/sharding/partition.h"
#include "runtime/plan/sharding/tensor_preset.h"

#include <stdlib.h>
#include <string.h>

// ---- What cannot be placed

fsdp_status fsdp_placement_check_rows(const fsdp_plan_config *c, int64_t seq, fsdp_error *error) {
  if (c->batch <= INT32_MAX / seq) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_OPTION,
                   "a micro-batch of %lld sequences of %lld tokens%s has more than 2^31 - 1 tokens: lower "
                   "--batch-size or --seq-length",
                   (long long)c->batch, (long long)seq, seq > c->seq ? " (with padding)" : "");
}

static fsdp_status check_router(const fsdp_plan_config *c, const fsdp_rows *rows, fsdp_error *error) {
  if (c->model.router_aux != FSDP_ROUTER_AUX_SEQUENCE || c->model.router_aux_coef <= 0 || rows->parts == 1)
    return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_OPTION,
                   "--aux-loss sequence, and %lld ranks have a part of each sequence alone: use --aux-loss "
                   "micro",
                   (long long)rows->parts);
}

// The row whose logits are wanted is one of the inputs' rows, which the head must read as they lie.
static fsdp_status check_logits(const fsdp_graph *graph, fsdp_error *error) {
  const fsdp_node *head = &graph->forward[graph->forward_count - 1];
  for (int o = 0; o < head->operand_count; o++)
    if (head->operands[o].value == graph->inputs[FSDP_INPUT_TARGETS]) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_OPTION,
                   "no text can be sampled where the head's rows lie over other axes than the sequence's: "
                   "leave the placement of lm_head to the preset, or the sampling out");
}

static fsdp_status check_params(const fsdp_graph *graph, fsdp_error *error) {
  for (int p = 0; p < graph->param_count; p++)
    if (graph->params[p].trainable) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT, "no parameter of the model trains: use a model of which some do");
}

static fsdp_status check_kernels(const fsdp_plan_config *c, const fsdp_graph *graph, fsdp_error *error) {
  for (int n = 0; n < graph->forward_count; n++)
    if (!fsdp_op_runs_on(c->backend->device, graph->forward[n].kind))
      return fsdp_fail(error, FSDP_ERR_OPTION, "%s has no kernel on a GPU: use --backend cpu",
                       fsdp_op_name(graph->forward[n].kind));
  return FSDP_OK;
}

// A block has experts of every rank, of the one with the fewest maybe places alone.
static fsdp_status check_expert_blocks(const fsdp_plan_config *c, const fsdp_graph *graph,
                                       fsdp_error *error) {
  const int64_t held = fsdp_expert_blocks_held(graph);
  if (c->expert_blocks <= 1 || c->expert_blocks <= held) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_OPTION,
                   "--expert-blocks %d: a rank has %lld of a layer's %lld experts, and a block has at least "
                   "one; use at most %lld",
                   c->expert_blocks, (long long)held, (long long)c->model.experts, (long long)held);
}

// ---- Where everything lies

// As strategy and mesh say: tensor cuts what the preset fsdp-tp cuts, and nothing is sharded under `no`.
static fsdp_specs *specs_of_strategy(const fsdp_plan_config *c, const fsdp_graph *graph) {
  fsdp_specs *specs = fsdp_specs_default(graph, &c->mesh);
  for (int p = 0; p < graph->param_count && c->strategy == FSDP_NO; p++) {
    specs->params[p] = (fsdp_spec){.dims = specs->params[p].dims};
    // What is not sharded is replicated, but each rank has experts of its own.
    if (graph->params[p].dims == 3) fsdp_dim_axes_add(&specs->params[p].dim[0], &c->mesh, FSDP_AXIS_EXPERT);
  }
  fsdp_tensor_preset(specs, graph, &c->mesh, c->sequence_parallel);
  return specs;
}

// As rules say; what a file of them leaves open is propagated.
static fsdp_status specs_of_sharding(fsdp_placement *p, fsdp_error *error) {
  const fsdp_plan_config *c = &p->config;
  fsdp_status status = fsdp_sharding_resolve(c->sharding, p->graph, &c->mesh, &p->specs, error);
  if (status || !fsdp_specs_are_open(p->specs, p->graph, &c->mesh)) return status;
  return fsdp_specs_complete(p->specs, p->graph, &c->mesh, c->param_dtype, &p->propagation, error);
}

// As what is propagated from a few operators says; the strategy says whether weights are sharded.
static fsdp_status specs_of_operators(fsdp_placement *p, fsdp_error *error) {
  const fsdp_plan_config *c = &p->config;
  const fsdp_slice_mesh mesh = fsdp_slice_mesh_of(&c->mesh);
  fsdp_status status =
      fsdp_propagate_graph(p->graph, &mesh, c->op_strategies, c->param_dtype, &p->propagation, error);
  if (status) return status;
  return fsdp_specs_of_propagation(p->propagation, p->graph, &c->mesh, c->strategy != FSDP_NO, &p->specs,
                                   error);
}

// Meshes on which the router's losses are not built.
static fsdp_status check_router_losses(const fsdp_plan_config *c, fsdp_error *error) {
  const int tensor = fsdp_mesh_size(&c->mesh, FSDP_AXIS_TENSOR);
  const bool by_preset = !c->sharding && !c->op_strategies;
  if (c->model.router_aux_coef <= 0 && c->model.router_z_coef <= 0) return FSDP_OK;
  if (tensor > 1 && c->sequence_parallel && by_preset)
    return fsdp_fail(
        error, FSDP_ERR_OPTION,
        "the router's losses with tensor=%d and sequence parallelism: a rank's router sees a part "
        "of the rows alone; use --sequence-parallel off",
        tensor);
  return FSDP_OK;
}

// Makes the graph, and says where everything lies.
static fsdp_status place(fsdp_placement *p, fsdp_error *error) {
  const fsdp_plan_config *c = &p->config;
  p->graph = fsdp_model_forward(&c->model, c->batch, c->seq);
  fsdp_status status = check_params(p->graph, error);
  if (status == FSDP_OK) status = check_router_losses(c, error);
  if (status == FSDP_OK) status = check_kernels(c, p->graph, error);
  if (status) return status;
  fsdp_graph_divide_losses(p->graph, c->micro_batches);
  p->graph->expert_capacity = c->expert_capacity;
  if (c->documents) fsdp_graph_add_documents(p->graph);
  if (c->loss_of_documents) fsdp_graph_weigh_documents(p->graph);
  if (fsdp_dropout_any(&c->dropout)) fsdp_graph_add_dropout(p->graph, &c->dropout);
  if (c->sharding) return specs_of_sharding(p, error);
  if (c->op_strategies) return specs_of_operators(p, error);
  p->specs = specs_of_strategy(c, p->graph);
  return FSDP_OK;
}

// Cuts the graph for one rank, and makes its backward and the units.
static fsdp_status cut_graph(fsdp_placement *p, fsdp_error *error) {
  const fsdp_plan_config *c = &p->config;
  p->axes = fsdp_factored_mesh_of(p->specs, p->graph, &c->mesh);
  fsdp_status status = fsdp_partition(p->graph, p->specs, &c->mesh, &p->axes, &p->rows, error);
  if (!status) status = fsdp_placement_check_rows(c, p->rows.parts * p->rows.local_seq, error);
  if (!status) status = check_router(c, &p->rows, error);
  if (!status && c->logits) status = check_logits(p->graph, error);
  if (status) return status;
  fsdp_graph_backward(p->graph);
  fsdp_graph_add_residuals(p->graph);
  status = check_expert_blocks(c, p->graph, error);
  if (status) return status;
  fsdp_expert_blocks_cut(p->graph, c->expert_blocks);
  return fsdp_units_create(p->graph, &c->wrap, &p->axes.mesh, &p->units, error);
}

void fsdp_placement_release(fsdp_placement *p) {
  if (!p || --p->holders > 0) return;
  fsdp_units_destroy(p->units);
  fsdp_specs_destroy(p->specs);
  fsdp_propagation_destroy(p->propagation);
  fsdp_graph_destroy(p->graph);
  free(p);
}

fsdp_status fsdp_placement_begin(const fsdp_plan_config *config, fsdp_placement **out, fsdp_error *error) {
  fsdp_placement *p = fsdp_alloc_zeroed(1, sizeof *p);
  p->config = *config;
  p->holders = 1;
  const fsdp_status status = place(p, error);
  if (status)
    fsdp_placement_release(p);
  else
    *out = p;
  return status;
}

static fsdp_status placement_create(const fsdp_plan_config *config, fsdp_placement **out, fsdp_error *error) {
  fsdp_placement *p;
  fsdp_status status = fsdp_placement_begin(config, &p, error);
  if (status) return status;
  status = cut_graph(p, error);
  if (status)
    fsdp_placement_release(p);
  else
    *out = p;
  return status;
}

// ---- The same for several plans

// Whether both have one placement. Compared by bytes: padding that differs costs one placement more.
static bool are_placed_alike(const fsdp_plan_config *a, const fsdp_plan_config *b) {
  fsdp_plan_config c = *b;
  c.cpu_offload = a->cpu_offload;
  c.saving = a->saving;
  c.prefetch = a->prefetch;
  c.accumulate = a->accumulate;
  c.limits = a->limits;
  c.draft = a->draft;
  c.peaks = a->peaks;
  c.unproved = a->unproved;
  const void *of_a = a, *of_c = &c;
  return memcmp(of_a, of_c, sizeof c) == 0;
}

// Makes `p`, which is at `place` or new, the first.
static void move_to_front(fsdp_placements *recent, int place, fsdp_placement *p) {
  for (; place > 0; place--) recent->of[place] = recent->of[place - 1];
  recent->of[0] = p;
}

fsdp_status fsdp_placement_take(const fsdp_plan_config *config, fsdp_placements *recent, fsdp_placement **out,
                                fsdp_error *error) {
  if (!recent) return placement_create(config, out, error);
  const int last = FSDP_PLACEMENTS_MAX - 1;
  int place = 0;
  while (place <= last && recent->of[place] && !are_placed_alike(&recent->of[place]->config, config)) place++;
  if (place <= last && recent->of[place]) {
    move_to_front(recent, place, recent->of[place]);
  } else {
    fsdp_placement *made;
    const fsdp_status status = placement_create(config, &made, error);
    if (status) return status;
    fsdp_placement_release(recent->of[last]);
    move_to_front(recent, last, made);
  }
  *out = recent->of[0];
  (*out)->holders++;
  return FSDP_OK;
}

void fsdp_placements_release(fsdp_placements *recent) {
  for (int i = 0; i < FSDP_PLACEMENTS_MAX; i++) fsdp_placement_release(recent->of[i]);
  *recent = (fsdp_placements){{NULL}};
}
