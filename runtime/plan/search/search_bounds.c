// Bounds in closed form: what no setting of a kind gets below.
#include "runtime/base/size.h"
#include "runtime/plan/search/search_internal.h"

#include <math.h>

// A model's FLOPs count a few parameters that no gemm multiplies (norms, learned positions).
#define GEMM_SHARE 0.95

static double sequences_of(const fsdp_search_config *search) {
  return (double)search->global_batch;
}

static double collective_s(const fsdp_search_config *search, const fsdp_search_kind *kind, const char *axis,
                           fsdp_instr_kind collective, double bytes) {
  const fsdp_axis_set axes = fsdp_mesh_axes(&kind->mesh, axis);
  const fsdp_profile_group group = fsdp_profile_group_of(&kind->mesh, axes, search->ranks_per_node);
  return fsdp_profile_collective_s(search->profile, collective, &group, bytes);
}

// The axes that shard what a rank keeps; context does unless all is whole.
static const char *shard_axes(const fsdp_search_kind *kind) {
  return kind->strategy == FSDP_NO ? FSDP_AXIS_FSDP : FSDP_AXIS_FSDP "," FSDP_AXIS_CONTEXT;
}

static int shards_of(const fsdp_search_kind *kind) {
  return fsdp_mesh_group_size(&kind->mesh, fsdp_mesh_axes(&kind->mesh, shard_axes(kind)));
}

// Whether the groups over two sets of axes use the same links.
static bool share_links(const fsdp_search_config *search, const fsdp_search_kind *kind, const char *a,
                        const char *b) {
  const fsdp_profile_group x =
      fsdp_profile_group_of(&kind->mesh, fsdp_mesh_axes(&kind->mesh, a), search->ranks_per_node);
  const fsdp_profile_group y =
      fsdp_profile_group_of(&kind->mesh, fsdp_mesh_axes(&kind->mesh, b), search->ranks_per_node);
  return (x.ranks > x.ranks_per_node) == (y.ranks > y.ranks_per_node);
}

// Gathers of the backward beside one gather a step, in a step of the fewest micro-batches. Units of whole
// models stay gathered; with them a step may gather once.
static int least_gathers_more(const fsdp_search_config *search, const fsdp_search_kind *kind) {
  int64_t batch;
  int micro_batches, least = 0;
  const bool regathers = (kind->strategy == FSDP_FULL || kind->strategy == FSDP_HYBRID) &&
                         search->fixed[FSDP_SEARCH_WRAP] && search->base.wrap.kind == FSDP_WRAP_BLOCK;
  for (int i = 0; regathers && search_batch(search, kind, i, &batch, &micro_batches); i++)
    least = least == 0 ? micro_batches : (int)fsdp_min_i64(least, micro_batches);
  return least > 0 ? 2 * least - 1 : 0;
}

// Weights are gathered for a forward before the first gradient is reduced, and gradients are reduced once a
// step at least, on one stream. Weights that are gathered again share their links with the reductions over
// the same axes, and may go on beside those over replicas.
static double communication_s(const fsdp_search_config *search, const search_space *space,
                              const fsdp_search_kind *kind) {
  const fsdp_plan_config *c = &search->base;
  const int tensor = fsdp_mesh_size(&kind->mesh, FSDP_AXIS_TENSOR);
  const double layers = (double)(space->layer_params * c->model.num_layers) / tensor;
  const double weights = layers * (double)fsdp_dtype_bytes(c->param_dtype);
  const double gradients = layers * (double)fsdp_dtype_bytes(c->reduce_dtype);
  const char *axes = shard_axes(kind);
  const char *replicas = kind->strategy == FSDP_NO ? FSDP_AXIS_DATA "," FSDP_AXIS_CONTEXT : FSDP_AXIS_DATA;
  const double gather = collective_s(search, kind, axes, FSDP_INSTR_ALL_GATHER, weights);
  const double scatter = collective_s(search, kind, axes, FSDP_INSTR_REDUCE_SCATTER, gradients);
  const double reduce =
      collective_s(search, kind, replicas, FSDP_INSTR_ALL_REDUCE, gradients / shards_of(kind));
  const double more = least_gathers_more(search, kind) * gather;
  const bool shared = share_links(search, kind, axes, replicas);
  return gather + scatter + (shared ? more + reduce : fmax(more, reduce));
}

// An update on the host reads a gradient, and reads and writes what the optimizer keeps.
static double host_update_s(const fsdp_search_config *search, const search_space *space,
                            const fsdp_search_kind *kind) {
  const fsdp_plan_config *c = &search->base;
  const fsdp_device_profile *profile = search->profile;
  if (!kind->cpu_offload || profile->device == FSDP_OP_CPU || profile->host_memory_rate <= 0) return 0;
  const double shard =
      (double)space->params / fsdp_mesh_size(&kind->mesh, FSDP_AXIS_TENSOR) / shards_of(kind);
  const int64_t bytes = fsdp_dtype_bytes(c->reduce_dtype) +
                        2 * (fsdp_dtype_bytes(c->master_dtype) + 2 * fsdp_dtype_bytes(c->moment_dtype));
  const int64_t ranks = fsdp_min_i64(search->ranks, search->ranks_per_node);
  return shard * (double)(bytes * ranks) / profile->host_memory_rate;
}

double search_least_s(const fsdp_search_config *search, const search_space *space,
                      const fsdp_search_kind *kind, fsdp_search_bound *bound) {
  const fsdp_plan_config *c = &search->base;
  const double rate = fsdp_profile_best_rate(search->profile, search->ranks_per_node, c->param_dtype);
  const double flops = sequences_of(search) * (double)c->seq *
                       fsdp_model_flops_per_token(&c->model, c->seq, FSDP_FLOPS_CAUSAL) / search->ranks;
  const double compute = rate > 0 ? GEMM_SHARE * flops / rate : 0;
  const double communication = communication_s(search, space, kind);
  const double update = host_update_s(search, space, kind), most = fmax(update, fmax(compute, communication));
  *bound = most == compute         ? FSDP_BOUND_COMPUTE
           : most == communication ? FSDP_BOUND_COMMUNICATION
                                   : FSDP_BOUND_UPDATE;
  return most;
}

int64_t search_least_bytes(const fsdp_search_config *search, const search_space *space,
                           const fsdp_search_kind *kind, fsdp_space *where) {
  const fsdp_plan_config *c = &search->base;
  const int tensor = fsdp_mesh_size(&kind->mesh, FSDP_AXIS_TENSOR);
  const double params = (double)space->params / tensor;
  const double states = params *
                        (double)(fsdp_dtype_bytes(c->master_dtype) + 2 * fsdp_dtype_bytes(c->moment_dtype)) /
                        shards_of(kind);
  const bool keeps = kind->strategy == FSDP_GRAD_OP || kind->strategy == FSDP_ZERO1 ||
                     (kind->strategy == FSDP_NO && c->param_dtype != FSDP_F32);
  const double weights = keeps ? params * (double)fsdp_dtype_bytes(c->param_dtype) : 0;
  *where = kind->cpu_offload ? FSDP_SPACE_HOST : FSDP_SPACE_DEVICE;
  if (!kind->cpu_offload) return (int64_t)(states + weights);
  const int64_t host = (int64_t)states, device = (int64_t)weights;
  const int64_t most = search->limit_bytes[FSDP_SPACE_DEVICE];
  if (!most || device <= most) return host;
  *where = FSDP_SPACE_DEVICE;
  return device;
}

int64_t search_value_bytes(const search_space *space, const fsdp_search_kind *kind, int64_t batch) {
  const double sequences = (double)batch * (double)kind->batch_parts / fsdp_mesh_ranks(&kind->mesh);
  return (int64_t)(sequences * space->value_bytes);
}

double search_links_left(const fsdp_search_config *search, const search_space *space) {
  const int64_t layers = fsdp_max_i64(0, search->base.model.num_layers - 2);
  return (double)(layers * space->layer_params) / (double)space->params;
}
