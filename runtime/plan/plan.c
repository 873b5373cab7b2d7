#include "runtime/plan/plan.h"

#include "default_profile.inc"
#include "runtime/base/check.h"
#include "runtime/base/progress.h"
#include "runtime/base/size.h"
#include "runtime/plan/proof/poison.h"
#include "runtime/plan/proof/verify.h"
#include "runtime/plan/proof/waits.h"

#include <stdlib.h>
#include <string.h>

const fsdp_plan_backend *fsdp_plan_backend_cpu(void) {
  // A core multiplies and adds in vectors while it waits for memory; a copy to the host is one of memory.
  static const fsdp_plan_backend backend = {
      .name = "cpu", .device = FSDP_OP_CPU, .flops_per_byte = 8, .link_ratio = 1};
  return &backend;
}

const fsdp_plan_backend *fsdp_plan_backend_cuda(void) {
  static const fsdp_plan_backend backend = {
      .name = "cuda",
      .device = FSDP_OP_CUDA,
      .gemm_workspace_bytes = (int64_t)32 << 20,
      .reserve_bytes = (int64_t)FSDP_DEFAULT_CONTEXT_BYTES,
      .reserve_estimated = FSDP_DEFAULT_CONTEXT_BYTES_ESTIMATED,
      .comm_reserve_bytes = (int64_t)FSDP_DEFAULT_COMMUNICATOR_BYTES,
      .comm_reserve_estimated = FSDP_DEFAULT_COMMUNICATOR_BYTES_ESTIMATED,
      .flops_per_byte = FSDP_DEFAULT_FLOPS_PER_S / FSDP_DEFAULT_MEMORY_BYTES_PER_S,
      .link_ratio = FSDP_DEFAULT_MEMORY_BYTES_PER_S / FSDP_DEFAULT_LINK_BYTES_PER_S};
  return &backend;
}

const char *fsdp_plan_default_profile(void) {
  return FSDP_DEFAULT_PROFILE;
}

fsdp_op_gpu fsdp_plan_gpu(const fsdp_op_gpu *gpu) {
  fsdp_op_gpu completed = *gpu;
  if (!completed.capability) completed.capability = (int)(10 * FSDP_DEFAULT_CAPABILITY + 0.5);
  if (!completed.multiprocessors) completed.multiprocessors = (int)FSDP_DEFAULT_MULTIPROCESSORS;
  return completed;
}

int64_t fsdp_plan_reserve_bytes(const fsdp_plan *plan) {
  const fsdp_plan_backend *backend = plan->config.backend;
  return backend->reserve_bytes + plan->program->comm_count * backend->comm_reserve_bytes;
}

bool fsdp_plan_reserve_estimated(const fsdp_plan *plan) {
  const fsdp_plan_backend *backend = plan->config.backend;
  return backend->reserve_estimated || (plan->program->comm_count > 0 && backend->comm_reserve_estimated);
}

// What an instruction sends in `runs` runs.
static void count_traffic(fsdp_traffic *traffic, const fsdp_plan *plan, const fsdp_instr *instr,
                          int64_t runs) {
  const fsdp_program *program = plan->program;
  if (!fsdp_instr_is_collective(instr)) return;
  const int64_t bytes =
      fsdp_collective_sent_bytes(fsdp_instr_collective_row(instr), fsdp_program_whole_bytes(program, instr),
                                 fsdp_program_comm_size(program, instr));
  const bool is_scalar = instr->stream == FSDP_STREAM_REDUCE && instr->unit < 0;
  *(is_scalar ? &traffic->scalar_bytes : &traffic->bytes[fsdp_instr_collective(instr)]) += runs * bytes;
  traffic->by_axes[fsdp_factored_source(&plan->axes, program->comms[instr->comm].axes)] += runs * bytes;
}

static fsdp_traffic step_traffic(const fsdp_plan *plan) {
  const fsdp_program *program = plan->program;
  fsdp_traffic traffic = {0};
  int64_t runs[FSDP_MAX_SECTIONS] = {0}; // of each section in a step
  int *order = fsdp_alloc((size_t)(program->micro_batches + 1) * sizeof *order);
  const int count = fsdp_program_step_order(program, order);
  for (int i = 0; i < count; i++) runs[order[i]]++;
  free(order);
  for (int s = 0; s < program->section_count; s++) {
    const fsdp_section *section = &program->sections[s];
    for (int p = section->begin; p < section->end && runs[s] > 0; p++)
      count_traffic(&traffic, plan, &program->instrs[p], runs[s]);
  }
  return traffic;
}

// Whether a plan without rules has a use for an axis.
static bool is_used(const char *axis) {
  return !strcmp(axis, FSDP_AXIS_DATA) || !strcmp(axis, FSDP_AXIS_FSDP) || !strcmp(axis, FSDP_AXIS_TENSOR) ||
         !strcmp(axis, FSDP_AXIS_CONTEXT) || !strcmp(axis, FSDP_AXIS_EXPERT);
}

// Without rules the strategy says what is sharded over data and fsdp.
fsdp_status fsdp_plan_check_mesh(const fsdp_mesh *mesh, const fsdp_strategy *strategy, fsdp_error *error) {
  const int replicas = fsdp_mesh_size(mesh, FSDP_AXIS_DATA), shards = fsdp_mesh_size(mesh, FSDP_AXIS_FSDP);
  for (int a = 0; a < mesh->count; a++) {
    const fsdp_mesh_axis *axis = &mesh->axes[a];
    if (axis->size == 1 || is_used(axis->name)) continue;
    return fsdp_fail(
        error, FSDP_ERR_OPTION,
        "axis %s has %d ranks, but without --sharding only data, fsdp, tensor, context and expert "
        "may have more than one: cut the batch over it, as in --sharding fsdp --extra-data-axis %s",
        axis->name, axis->size, axis->name);
  }
  if (!strategy) return FSDP_OK;
  if ((*strategy == FSDP_FULL || *strategy == FSDP_GRAD_OP) && replicas != 1)
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "--strategy %s shards over all ranks, so data must be 1; use --strategy "
                     "hybrid for %d replicas",
                     fsdp_strategy_name(*strategy), replicas);
  if (*strategy != FSDP_NO || shards == 1) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_OPTION,
                   "--strategy no shards nothing, so fsdp must be 1; use --strategy hybrid for "
                   "shards of %d ranks",
                   shards);
}

static fsdp_status check_mesh(const fsdp_plan_config *c, fsdp_error *error) {
  char mesh[FSDP_MESH_TEXT_BYTES];
  fsdp_error why;
  const bool placed = c->sharding || c->op_strategies;
  const fsdp_status status = placed ? FSDP_OK : fsdp_plan_check_mesh(&c->mesh, &c->strategy, &why);
  return status ? fsdp_fail(error, status, "--mesh %s: %.900s", fsdp_mesh_print(&c->mesh, ",", mesh),
                            why.message)
                : FSDP_OK;
}

static fsdp_status check_gemms(const fsdp_plan_config *c, fsdp_error *error) {
  const fsdp_op_gpu gpu = fsdp_plan_gpu(&c->gpu);
  if (!gpu.gemm_multiprocessors) return FSDP_OK;
  if (c->backend->device != FSDP_OP_CUDA)
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "--set gemm-multiprocessors=%d is of a GPU, and this plan is for a CPU: leave it out",
                     gpu.gemm_multiprocessors);
  if (gpu.gemm_multiprocessors <= gpu.multiprocessors) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_OPTION,
                   "--set gemm-multiprocessors=%d exceeds the GPU's %d: use fewer, or 0 for all",
                   gpu.gemm_multiprocessors, gpu.multiprocessors);
}

fsdp_status fsdp_plan_check_attention(const fsdp_plan_config *c, fsdp_error *error) {
  const fsdp_op_gpu gpu = fsdp_plan_gpu(&c->gpu);
  if (c->backend->device == FSDP_OP_CUDA)
    return fsdp_attention_check(&gpu, c->param_dtype, c->model.head_dim, c->dropout.attention > 0, error);
  if (c->gpu.attention == FSDP_ATTENTION_AUTO) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_OPTION,
                   "--attention chooses between a GPU's kernels, and this plan is for a CPU, which has one: "
                   "leave it out, or use --backend cuda");
}

// What a GPU's kernels of routed experts do not take.
static fsdp_status check_experts_on_gpu(const fsdp_plan_config *c, int64_t routed_tokens, fsdp_error *error) {
  if (c->backend->device == FSDP_OP_CPU) return FSDP_OK;
  if (c->model.router_aux == FSDP_ROUTER_AUX_SEQUENCE && c->model.router_aux_coef > 0)
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "--aux-loss sequence: route_sequences and its backward have no kernel on a GPU: use "
                     "--aux-loss micro, or --backend cpu");
  if (c->model.experts > FSDP_ROUTE_EXPERTS_MAX)
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "a layer of %lld experts: a GPU's router chooses among %d at most: use --backend cpu",
                     (long long)c->model.experts, FSDP_ROUTE_EXPERTS_MAX);
  if (routed_tokens * c->model.expert_slots <= INT32_MAX / 2) return FSDP_OK;
  return fsdp_fail(
      error, FSDP_ERR_OPTION,
      "%lld tokens of the ranks that share experts, each sent to %lld, are more than 2^30 routed "
      "rows, which a GPU's kernels count: lower --batch-size or --seq-length",
      (long long)routed_tokens, (long long)c->model.expert_slots);
}

// What routed experts do not have yet: cuts of their operators.
static fsdp_status check_experts(const fsdp_plan_config *c, fsdp_error *error) {
  const int ranks = fsdp_mesh_size(&c->mesh, FSDP_AXIS_EXPERT);
  if (!c->model.experts && ranks > 1 && !c->sharding && !c->op_strategies)
    return fsdp_fail(
        error, FSDP_ERR_OPTION,
        "--mesh: axis expert has %d ranks, but the model has no routed experts: use expert=1, or "
        "fsdp in its place",
        ranks);
  if (!fsdp_model_expert_layers(&c->model) && c->expert_blocks > 1)
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "--expert-blocks %d: the model has no routed experts; leave it out", c->expert_blocks);
  if (!c->model.experts) return FSDP_OK;
  if (c->op_strategies)
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "--op-strategies of a model with routed experts: leave them out and use --mesh, or a "
                     "--sharding file");
  if (c->model.route_bias && c->hyper.balance_rate > 0 && c->master_dtype != FSDP_F32)
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "--master-dtype bf16 would round away what --router-bias-rate %g adds: use "
                     "--master-dtype fp32",
                     (double)c->hyper.balance_rate);
  // A number for each, of all ranks that share a layer's experts.
  if (c->batch * ranks * c->model.expert_slots <= INT32_MAX / c->seq)
    return check_experts_on_gpu(c, c->batch * ranks * c->seq, error);
  return fsdp_fail(error, FSDP_ERR_OPTION,
                   "a micro-batch of %lld sequences of %lld tokens, each sent to %lld experts, has more than "
                   "2^31 - 1 routed rows: lower --batch-size or --seq-length",
                   (long long)c->batch, (long long)c->seq, (long long)c->model.expert_slots);
}

static fsdp_status check_config(const fsdp_plan_config *c, fsdp_error *error) {
  FSDP_CHECK(c->batch >= 1 && c->seq >= 1 && c->micro_batches >= 1 && c->prefetch >= 0, "sizes");
  FSDP_CHECK(!c->evaluation_only || (c->micro_batches == 1 && !c->evaluation && !c->check && !c->snapshot),
             "a plan of evaluations alone");
  fsdp_status status = check_mesh(c, error);
  if (!status) status = fsdp_plan_check_attention(c, error);
  if (!status) status = check_gemms(c, error);
  if (!status) status = fsdp_model_check_seq(&c->model, c->seq, error);
  if (!status) status = fsdp_placement_check_rows(c, c->seq, error);
  return status ? status : check_experts(c, error);
}

// The number of parts of the global batch, and in *part that of `rank`.
static int batch_part(const fsdp_specs *specs, const fsdp_mesh *mesh, int rank, int *part) {
  int parts;
  *part = fsdp_dim_axes_part(&specs->input.dim[0], mesh, rank, &parts);
  return parts;
}

int fsdp_plan_batch_part(const fsdp_plan *plan, int rank, int *part) {
  return batch_part(plan->specs, &plan->config.mesh, rank, part);
}

fsdp_status fsdp_plan_count_batch_parts(const fsdp_plan_config *config, int *parts, fsdp_error *error) {
  fsdp_placement *placement;
  int part;
  *parts = fsdp_mesh_size(&config->mesh, FSDP_AXIS_DATA) * fsdp_mesh_size(&config->mesh, FSDP_AXIS_FSDP) *
           fsdp_mesh_size(&config->mesh, FSDP_AXIS_EXPERT);
  if (!config->sharding && !config->op_strategies) return FSDP_OK;
  fsdp_status status = check_config(config, error);
  if (status) return status;
  status = fsdp_placement_begin(config, &placement, error);
  *parts = status ? 0 : batch_part(placement->specs, &config->mesh, 0, &part);
  if (!status) fsdp_placement_release(placement);
  return status;
}

// Makes units, program and lifetimes of what is placed: what computing the peaks requires.
static fsdp_status plan_program(fsdp_plan *plan, fsdp_placements *recent, fsdp_error *error) {
  const fsdp_plan_config *c = &plan->config;
  fsdp_status status = fsdp_placement_take(c, recent, &plan->placement, error);
  if (status) return status;
  plan->graph = plan->placement->graph;
  plan->specs = plan->placement->specs;
  plan->propagation = plan->placement->propagation;
  plan->axes = plan->placement->axes;
  plan->rows = plan->placement->rows;
  plan->units = plan->placement->units;
  plan->fates = fsdp_alloc((size_t)plan->graph->value_count * sizeof *plan->fates);
  status = fsdp_saving_resolve(&c->saving, plan->graph, c->prefetch, plan->fates, error);
  if (status) return status;
  plan->program = fsdp_schedule(c, plan->fates, plan->graph, plan->units, &plan->unit_state);
  fsdp_program_lifetimes(plan->program);
  return FSDP_OK;
}

int64_t fsdp_traffic_sent_bytes(const fsdp_traffic *traffic) {
  int64_t sum = 0;
  for (int c = 0; c < FSDP_COLLECTIVE_COUNT; c++) sum += traffic->bytes[c];
  return sum;
}

void fsdp_plan_prove(fsdp_plan *plan) {
  fsdp_violation violation;
  fsdp_progress_mark();
  if (plan->config.poison) fsdp_program_insert_poison(plan->program);
  fsdp_waits_infer(plan->program);
  for (int i = 0; i < plan->program->instr_count; i++) {
    const fsdp_instr *instr = &plan->program->instrs[i];
    const bool on_host = instr->kind != FSDP_INSTR_OP || instr->stream == FSDP_STREAM_HOST;
    FSDP_CHECK(on_host || fsdp_op_runs_on(plan->config.backend->device, instr->op),
               "%s, which has no kernel on this device, is planned", fsdp_op_name(instr->op));
  }
  FSDP_CHECK(fsdp_verify(plan->program, &violation), "the step program is not safe: %s", violation.message);
  plan->verified = true;
}

fsdp_attention_kernel fsdp_plan_attention(const fsdp_plan_config *config) {
  const fsdp_op_gpu gpu = fsdp_plan_gpu(&config->gpu);
  return config->backend->device == FSDP_OP_CPU
             ? FSDP_ATTENTION_CPU
             : fsdp_attention_kernel_of(&gpu, config->param_dtype, config->model.head_dim,
                                        config->dropout.attention > 0);
}

static int digests_of(const fsdp_plan *plan, int unit) {
  return plan->units->units[unit].shard_numel > 0 ? plan->unit_state[unit].optimizer->slot_count : 0;
}

int fsdp_plan_digest_count(const fsdp_plan *plan) {
  int count = 0;
  for (int u = 0; u < plan->units->count; u++) count += digests_of(plan, u);
  return count;
}

int fsdp_plan_digest_unit(const fsdp_plan *plan, int digest, const fsdp_slot **slot) {
  int unit = 0, index = digest; // among those of its unit
  for (; unit < plan->units->count && index >= digests_of(plan, unit); unit++)
    index -= digests_of(plan, unit);
  FSDP_CHECK(unit < plan->units->count, "digest %d of %d", digest, fsdp_plan_digest_count(plan));
  if (slot) *slot = &plan->unit_state[unit].optimizer->slots[index];
  return unit;
}

fsdp_dtype fsdp_plan_slot_dtype(const fsdp_plan *plan, int slot) {
  return fsdp_slot_dtype_of(&plan->optimizer->slots[slot], plan->config.master_dtype,
                            plan->config.moment_dtype);
}

int64_t fsdp_plan_check_bytes(const fsdp_plan *plan) {
  int64_t bytes = 0;
  for (int i = 0; i < plan->program->instr_count; i++) {
    const fsdp_instr *instr = &plan->program->instrs[i];
    if (instr->kind != FSDP_INSTR_OP || instr->op != FSDP_PLAN_OP_CHECKSUM) continue;
    bytes += plan->program->operands[instr->first_operand].size_bytes;
  }
  return bytes;
}

void fsdp_plan_instr_name(const fsdp_plan *plan, int position, char *text, size_t bytes) {
  snprintf(text, bytes, "%s", "");
  if (position < 0 || position >= plan->program->instr_count) return;
  const fsdp_instr *instr = &plan->program->instrs[position];
  char path[FSDP_NAME_BYTES] = "";
  if (instr->module >= 0) {
    fsdp_graph_module_path(plan->graph, instr->module, path);
  } else if (instr->unit >= 0) {
    const char *unit = plan->units->units[instr->unit].path;
    snprintf(path, sizeof path, "%s", unit[0] ? unit : "the root unit");
  }
  snprintf(text, bytes, "%s%s%s", fsdp_instr_name(instr), path[0] ? " of " : "", path);
}

// Of the configuration's limits what is left for arenas.
static fsdp_memory_limits arena_limits(const fsdp_plan *plan) {
  fsdp_memory_limits limits = plan->config.limits;
  const int64_t reserve = fsdp_plan_reserve_bytes(plan);
  int64_t *const with_reserve[] = {&limits.bytes[FSDP_SPACE_DEVICE], &limits.shared_bytes,
                                   &limits.room_bytes};
  for (int i = 0; i < 3; i++)
    if (*with_reserve[i]) *with_reserve[i] = fsdp_max_i64(*with_reserve[i] - reserve, 1);
  return limits;
}

fsdp_status fsdp_plan_create_among(const fsdp_plan_config *config, fsdp_placements *recent, fsdp_plan **out,
                                   fsdp_error *error) {
  fsdp_status status = check_config(config, error);
  if (status) return status;
  fsdp_plan *plan = fsdp_alloc_zeroed(1, sizeof *plan);
  plan->config = *config;
  plan->config.gpu = fsdp_plan_gpu(&config->gpu);
  if (config->evaluation_only) plan->config.optimizer = FSDP_OPTIMIZER_FROZEN;
  plan->optimizer = &fsdp_optimizers[plan->config.optimizer];
  fsdp_progress_mark(); // a search makes thousands, while ranks wait for it
  status = plan_program(plan, recent, error);
  if (status) {
    fsdp_plan_destroy(plan);
    return status;
  }
  *out = plan;
  plan->traffic = step_traffic(plan);
  if (config->draft) {
    // What is offloaded leaves to make room for something else, which waits for its copies.
    fsdp_memory_draft(plan->program, !config->peaks && fsdp_saving_offloads(&config->saving), &plan->memory);
    if (!config->peaks) fsdp_waits_infer(plan->program);
    return FSDP_OK;
  }
  fsdp_progress_mark();
  const fsdp_memory_limits limits = arena_limits(plan);
  fsdp_memory_plan(plan->program, &limits, &plan->memory);
  if (!config->unproved) fsdp_plan_prove(plan);
  return FSDP_OK;
}

fsdp_status fsdp_plan_create(const fsdp_plan_config *config, fsdp_plan **out, fsdp_error *error) {
  return fsdp_plan_create_among(config, NULL, out, error);
}

void fsdp_plan_destroy(fsdp_plan *plan) {
  if (!plan) return;
  fsdp_program_destroy(plan->program);
  fsdp_placement_release(plan->placement);
  free(plan->unit_state);
  free(plan->fates);
  free(plan);
}
