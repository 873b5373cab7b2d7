// Lower bounds on the bytes and the time of every setting of a kind: in closed form, and from a few drafts.
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/search/search_internal.h"

#include <math.h>
#include <string.h>

// A model's FLOPs count a few parameters that no gemm multiplies (norms, learned positions).
#define GEMM_SHARE 0.95

static double sequences_of(const fsdp_search_config *search) {
  return (double)search->global_batch;
}

static double collective_s(const fsdp_search_config *search, const fsdp_search_kind *kind, const char *axis,
                           fsdp_collective_kind collective, double bytes) {
  const fsdp_axis_set axes = fsdp_mesh_axes(&kind->mesh, axis);
  const fsdp_profile_group group = fsdp_profile_group_of(&kind->mesh, axes, search->ranks_per_node);
  return fsdp_profile_collective_s(search->profile, collective, &group, bytes);
}

// The axes that shard what a rank keeps; context does unless all is whole.
static const char *shard_axes(const fsdp_search_kind *kind) {
  return kind->strategy == FSDP_NO ? FSDP_AXIS_FSDP : FSDP_AXIS_FSDP "," FSDP_AXIS_CONTEXT;
}

// The most parts in which a layer's weights are cut for its work: tensor cuts all of them at most, and expert
// most of them.
static int parts_of(const fsdp_search_kind *kind) {
  return fsdp_mesh_size(&kind->mesh, FSDP_AXIS_TENSOR) * fsdp_mesh_size(&kind->mesh, FSDP_AXIS_EXPERT);
}

static int shards_of(const fsdp_search_kind *kind) {
  return fsdp_mesh_group_size(&kind->mesh, fsdp_mesh_axes(&kind->mesh, shard_axes(kind)));
}

static bool crosses(const fsdp_search_config *search, const fsdp_search_kind *kind, const char *axis) {
  const fsdp_profile_group group =
      fsdp_profile_group_of(&kind->mesh, fsdp_mesh_axes(&kind->mesh, axis), search->ranks_per_node);
  return group.ranks > group.ranks_per_node;
}

// Whether whole tensors of `params` elements of this type fit on a device.
static bool fits_whole(const fsdp_search_config *search, double params, fsdp_dtype dtype) {
  const int64_t limit = fsdp_search_allowed(search).bytes[FSDP_SPACE_DEVICE];
  return !limit || params * (double)fsdp_dtype_bytes(dtype) <= (double)limit;
}

// The layers at most whose weights stay gathered from their forward to their backward. Units of whole models
// do, if they fit; with units of layers, or smaller ones, those that are gathered ahead may.
static int64_t layers_kept_gathered(const fsdp_search_config *search, double params) {
  const int64_t layers = search->base.model.num_layers;
  const int ahead = search->fixed[FSDP_SEARCH_PREFETCH] ? search->base.prefetch : SEARCH_PREFETCH_MAX;
  if (!search->fixed[FSDP_SEARCH_WRAP])
    return fits_whole(search, params, search->base.param_dtype) ? layers : ahead + 1;
  return search->base.wrap.kind == FSDP_WRAP_BLOCK ? ahead - 1 : layers;
}

// The share of the layers' weights that is gathered again for each backward and each forward but the first.
static double share_regathered(const fsdp_search_config *search, const search_space *space,
                               const fsdp_search_kind *kind, double params) {
  const int64_t layers = search->base.model.num_layers;
  if (!space->layer_params || (kind->strategy != FSDP_FULL && kind->strategy != FSDP_HYBRID)) return 0;
  const int64_t kept = fsdp_max_i64(0, layers_kept_gathered(search, params));
  return (double)fsdp_max_i64(0, layers - kept) / (double)layers;
}

// Weights are gathered for a forward before the first gradient is reduced, and gradients are reduced once a
// step at least, on one stream; with every micro-batch if no device holds whole ones. Weights that are
// gathered again share their links with the reductions over the same axes, and may go on beside those over
// replicas. Links carry what layers send over `tensor` and `context` besides.
static double communication_s(const fsdp_search_config *search, const search_space *space,
                              const fsdp_search_kind *kind, int micro_batches,
                              const search_batch_floor *floor) {
  const fsdp_plan_config *c = &search->base;
  const int parts = parts_of(kind);
  const double all = (double)space->params / parts;
  const double layers = (double)(space->layer_params * c->model.num_layers) / parts;
  const double weights = layers * (double)fsdp_dtype_bytes(c->param_dtype);
  const double gradients = layers * (double)fsdp_dtype_bytes(c->reduce_dtype);
  const char *axes = shard_axes(kind);
  const char *replicas = kind->strategy == FSDP_NO ? FSDP_AXIS_DATA "," FSDP_AXIS_CONTEXT : FSDP_AXIS_DATA;
  const fsdp_dtype least = c->reduce_dtype == FSDP_F32 ? c->param_dtype : c->reduce_dtype;
  const int reductions = fits_whole(search, all, least) ? 1 : micro_batches;
  const double gather = collective_s(search, kind, axes, FSDP_ALL_GATHER, weights);
  const double scatter = reductions * collective_s(search, kind, axes, FSDP_REDUCE_SCATTER, gradients);
  const double reduce = collective_s(search, kind, replicas, FSDP_ALL_REDUCE, gradients / shards_of(kind));
  const double more = share_regathered(search, space, kind, all) * (2 * micro_batches - 1) * gather;
  const bool across = crosses(search, kind, axes), shared = across == crosses(search, kind, replicas);
  const double one_after_another = gather + scatter + (shared ? more + reduce : fmax(more, reduce));
  if (!floor) return one_after_another;
  const double here = across ? floor->network_s : floor->node_s;
  const double there = across ? floor->node_s : floor->network_s;
  const double on_link = gather + scatter + more + here + (shared ? reduce : 0);
  return fmax(fmax(one_after_another, on_link), there + (shared ? 0 : reduce));
}

// An update on the host reads a gradient, and reads and writes what the optimizer keeps.
static double host_update_s(const fsdp_search_config *search, const search_space *space,
                            const fsdp_search_kind *kind) {
  const fsdp_plan_config *c = &search->base;
  const fsdp_device_profile *profile = search->profile;
  if (!kind->cpu_offload || profile->device == FSDP_OP_CPU || profile->host_memory_rate <= 0) return 0;
  const double shard = (double)space->params / parts_of(kind) / shards_of(kind);
  const int64_t bytes = fsdp_dtype_bytes(c->reduce_dtype) +
                        2 * fsdp_optimizer_elem_bytes(c->optimizer, c->master_dtype, c->moment_dtype);
  const int64_t ranks = fsdp_min_i64(search->ranks, search->ranks_per_node);
  return shard * (double)(bytes * ranks) / profile->host_memory_rate;
}

// The least of a kind, and of one of its micro-batches if its `floor` is known.
static double least_s(const fsdp_search_config *search, const search_space *space,
                      const fsdp_search_kind *kind, int micro_batches, const search_batch_floor *floor,
                      fsdp_search_bound *bound) {
  const fsdp_plan_config *c = &search->base;
  const double rate = fsdp_profile_best_rate(search->profile, search->ranks_per_node, c->param_dtype);
  const double flops = sequences_of(search) * (double)c->seq *
                       fsdp_model_flops_per_token(&c->model, c->seq, FSDP_FLOPS_CAUSAL) / search->ranks;
  const double compute = fmax(rate > 0 ? GEMM_SHARE * flops / rate : 0, floor ? floor->layers_s : 0);
  const double communication = communication_s(search, space, kind, micro_batches, floor);
  const double update = host_update_s(search, space, kind), most = fmax(update, fmax(compute, communication));
  *bound = most == compute         ? FSDP_BOUND_COMPUTE
           : most == communication ? FSDP_BOUND_COMMUNICATION
                                   : FSDP_BOUND_UPDATE;
  return most;
}

double search_least_s(const fsdp_search_config *search, const search_space *space,
                      const fsdp_search_kind *kind, const search_floor *floor, fsdp_search_bound *bound) {
  int64_t batch;
  int micro_batches, fewest = 1;
  double least = INFINITY;
  if (!floor || !floor->count) {
    for (int i = 0; search_batch(search, kind, i, &batch, &micro_batches); i++) fewest = micro_batches;
    return least_s(search, space, kind, fewest, NULL, bound);
  }
  if (floor->drafted > 0) {
    const int last = floor->count - 1;
    const search_batch_floor *of = &floor->batches[last];
    const double share = 1 - FSDP_EVALUATION_ERROR;
    const search_batch_floor any = {share * of->layers_s, share * of->node_s, share * of->network_s};
    search_batch(search, kind, last, &batch, &micro_batches);
    return least_s(search, space, kind, micro_batches, &any, bound);
  }
  for (int i = 0; i < floor->count && search_batch(search, kind, i, &batch, &micro_batches); i++) {
    fsdp_search_bound of;
    const double seconds = least_s(search, space, kind, micro_batches, &floor->batches[i], &of);
    if (seconds >= least) continue;
    least = seconds;
    *bound = of;
  }
  return least;
}

double search_batch_least_s(const fsdp_search_config *search, const search_space *space,
                            const fsdp_search_kind *kind, int micro_batches,
                            const search_batch_floor *floor) {
  fsdp_search_bound bound;
  return least_s(search, space, kind, micro_batches, floor, &bound);
}

// Whether weights lie beside the states all the time: whole ones, in another type than the states' or where
// these are sharded or on the host.
static bool keeps_weights(const fsdp_search_config *search, const fsdp_search_kind *kind) {
  const fsdp_plan_config *c = &search->base;
  if (c->param_dtype == c->master_dtype && !kind->cpu_offload && shards_of(kind) == 1) return false;
  return kind->strategy == FSDP_GRAD_OP || kind->strategy == FSDP_ZERO1 || kind->strategy == FSDP_NO;
}

int64_t search_least_bytes(const fsdp_search_config *search, const search_space *space,
                           const fsdp_search_kind *kind, fsdp_space *where) {
  const fsdp_plan_config *c = &search->base;
  const double params = (double)space->params / parts_of(kind);
  const double states = params *
                        (double)fsdp_optimizer_elem_bytes(c->optimizer, c->master_dtype, c->moment_dtype) /
                        shards_of(kind);
  const double weights = keeps_weights(search, kind) ? params * (double)fsdp_dtype_bytes(c->param_dtype) : 0;
  *where = kind->cpu_offload ? FSDP_SPACE_HOST : FSDP_SPACE_DEVICE;
  if (!kind->cpu_offload) return (int64_t)(states + weights);
  const int64_t host = (int64_t)states, device = (int64_t)weights;
  const int64_t most = fsdp_search_allowed(search).bytes[FSDP_SPACE_DEVICE];
  if (!most || device <= most) return host;
  *where = FSDP_SPACE_DEVICE;
  return device;
}

double search_links_left(const fsdp_search_config *search, const search_space *space) {
  const int64_t layers = fsdp_max_i64(0, search->base.model.num_layers - 2);
  return (double)(layers * space->layer_params) / (double)space->params;
}

// ---- From drafts

// Whether an axis has as many ranks in both meshes, in groups that lie alike on nodes.
static bool lies_alike(const fsdp_mesh *a, const fsdp_mesh *b, const char *axis, int ranks_per_node) {
  const fsdp_profile_group x = fsdp_profile_group_of(a, fsdp_mesh_axes(a, axis), ranks_per_node);
  const fsdp_profile_group y = fsdp_profile_group_of(b, fsdp_mesh_axes(b, axis), ranks_per_node);
  return x.ranks == y.ranks && x.ranks_per_node == y.ranks_per_node && x.groups == y.groups;
}

// Rules may cut anything over any axis.
static bool is_alike(const fsdp_search_config *search, const search_floor *floor,
                     const fsdp_search_kind *kind) {
  const bool rules = search->base.sharding || search->base.op_strategies;
  if (rules) return memcmp(&floor->mesh, &kind->mesh, sizeof kind->mesh) == 0;
  return lies_alike(&floor->mesh, &kind->mesh, FSDP_AXIS_TENSOR, search->ranks_per_node) &&
         lies_alike(&floor->mesh, &kind->mesh, FSDP_AXIS_CONTEXT, search->ranks_per_node) &&
         lies_alike(&floor->mesh, &kind->mesh, FSDP_AXIS_EXPERT, search->ranks_per_node) &&
         floor->batch_parts == kind->batch_parts && floor->sequence_parallel == kind->sequence_parallel;
}

static int count_batches(const fsdp_search_config *search, const search_space *space,
                         const fsdp_search_kind *kind, const fsdp_evaluator *evaluator) {
  fsdp_plan_config config;
  int count = 0;
  while (search_next_batch(search, evaluator, space, kind, count, &config)) count++;
  return count;
}

static search_floor *find_floor(const fsdp_search_config *search, const search_space *space,
                                const fsdp_search_kind *kind, search_floors *floors,
                                const fsdp_evaluator *evaluator) {
  for (int i = 0; i < floors->count; i++)
    if (is_alike(search, &floors->items[i], kind)) return &floors->items[i];
  floors->items = fsdp_realloc(floors->items, (size_t)(floors->count + 1) * sizeof *floors->items);
  search_floor *floor = &floors->items[floors->count++];
  *floor = (search_floor){.mesh = kind->mesh,
                          .sequence_parallel = kind->sequence_parallel,
                          .batch_parts = kind->batch_parts,
                          .count = count_batches(search, space, kind, evaluator)};
  floor->drafted = floor->count;
  return floor;
}

const search_floor *search_floor_of(const fsdp_search_config *search, const search_space *space,
                                    const fsdp_search_kind *kind, bool all, search_floors *floors,
                                    fsdp_evaluator *evaluator) {
  search_floor *floor = find_floor(search, space, kind, floors, evaluator);
  fsdp_plan_config config = search_first_config(search, space, kind);
  while (floor->drafted > 0 && (all || floor->drafted == floor->count)) {
    fsdp_evaluation e;
    search_next_batch(search, evaluator, space, kind, --floor->drafted, &config);
    if (!fsdp_evaluate(evaluator, &config, FSDP_EVALUATE_FEW, &e)) continue;
    floor->batches[floor->drafted] = (search_batch_floor){e.layers_s, e.axes_node_s, e.axes_network_s};
  }
  return floor;
}

// ---- Limits, and what bounds a step

int64_t fsdp_search_without_margin(int64_t bytes, double margin) {
  return (int64_t)((double)bytes * (1 - margin));
}

fsdp_memory_limits fsdp_search_allowed(const fsdp_search_config *search) {
  const int64_t device = fsdp_search_without_margin(search->limit_bytes[FSDP_SPACE_DEVICE], search->margin);
  return (fsdp_memory_limits){
      .bytes = {[FSDP_SPACE_DEVICE] = device, [FSDP_SPACE_HOST] = search->limit_bytes[FSDP_SPACE_HOST]},
      .shared_bytes = fsdp_search_without_margin(search->shared_limit_bytes, search->margin),
      .room_bytes = device};
}

fsdp_search_bound search_bound_of(const fsdp_evaluation *e) {
  const double most = fmax(e->comm_s, fmax(e->copies_s, e->update_s));
  if (most < e->step_s / 4) return FSDP_BOUND_COMPUTE;
  return most == e->comm_s     ? FSDP_BOUND_COMMUNICATION
         : most == e->copies_s ? FSDP_BOUND_COPIES
                               : FSDP_BOUND_UPDATE;
}
