#include "runtime/plan/program/schedule_internal.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

// A tensor of unit `u`.
static int unit_tensor(scheduler *s, int u, const char *what, fsdp_space space, fsdp_category category,
                       fsdp_lifetime lifetime, int64_t numel, fsdp_dtype dtype) {
  return schedule_tensor(s, s->units->units[u].path, what, space, category, lifetime, u,
                         s->units->units[u].module, numel * fsdp_dtype_bytes(dtype));
}

static fsdp_space state_space(const scheduler *s) {
  return s->config->cpu_offload ? FSDP_SPACE_HOST : FSDP_SPACE_DEVICE;
}

void schedule_state_tensors(scheduler *s) {
  const fsdp_plan_config *c = s->config;
  bool keeps_copy = c->param_dtype != c->master_dtype && (c->cpu_offload || c->strategy == FSDP_NO);
  fsdp_space space = state_space(s);
  for (int u = 0; u < s->units->count; u++) {
    fsdp_unit_state *state = &s->plan->unit_state[u];
    *state = (fsdp_unit_state){-1, -1, -1, -1, -1};
    s->unit[u] = (unit_tensors){-1, -1, -1};
    int64_t numel = s->units->units[u].shard_numel;
    if (!numel) continue;
    state->master = unit_tensor(s, u, "master", space, FSDP_CATEGORY_PARAMETERS, FSDP_LIVE_ALWAYS, numel,
                                c->master_dtype);
    state->moment1 = unit_tensor(s, u, "moment1", space, FSDP_CATEGORY_OPTIMIZER, FSDP_LIVE_ALWAYS, numel,
                                 c->moment_dtype);
    state->moment2 = unit_tensor(s, u, "moment2", space, FSDP_CATEGORY_OPTIMIZER, FSDP_LIVE_ALWAYS, numel,
                                 c->moment_dtype);
    if (keeps_copy)
      state->copy =
          unit_tensor(s, u, "copy", space, FSDP_CATEGORY_PARAMETERS, FSDP_LIVE_ALWAYS, numel, c->param_dtype);
  }
}

// Whether a gathered unit stays gathered until its last use of the step.
static bool stays_gathered(const scheduler *s, int u) {
  return s->is_training && (s->keeps_gathered || u == 0);
}

bool schedule_unit_gathers(const scheduler *s, int u) {
  if (s->resident || !s->units->units[u].numel) return false;
  return s->unit[u].gathered < 0 || !stays_gathered(s, u);
}

// This rank's slot of a buffer that holds unit `u` whole.
static fsdp_operand own_slot(const scheduler *s, int u, int tensor, fsdp_dtype dtype, fsdp_access access) {
  int64_t bytes = s->units->units[u].shard_numel * fsdp_dtype_bytes(dtype);
  return (fsdp_operand){
      .tensor = tensor, .dtype = dtype, .access = access, .size_bytes = bytes, .rank_stride_bytes = bytes};
}

void schedule_gather(scheduler *s, int u) {
  const fsdp_plan_config *c = s->config;
  const fsdp_unit_state *state = &s->plan->unit_state[u];
  bool spans_sections = stays_gathered(s, u) && c->accumulation > 1;
  int gathered = unit_tensor(s, u, "gathered", FSDP_SPACE_DEVICE, FSDP_CATEGORY_GATHERED,
                             spans_sections ? FSDP_LIVE_STEP : FSDP_LIVE_SECTION,
                             s->units->units[u].padded_numel, c->param_dtype);
  int source_tensor = state->copy >= 0 ? state->copy : state->master;
  fsdp_dtype source_dtype = state->copy >= 0 ? c->param_dtype : c->master_dtype;
  fsdp_operand source = schedule_whole(s, source_tensor, source_dtype, FSDP_READ);
  fsdp_operand slot = own_slot(s, u, gathered, c->param_dtype, FSDP_WRITE);
  int first = -1;
  if (c->cpu_offload) {
    first = schedule_move(s, FSDP_INSTR_COPY_UP, u, source, slot);
  } else if (source_dtype != c->param_dtype || s->shard_count == 1) {
    first = schedule_op(s, FSDP_STREAM_GATHER, FSDP_OP_CAST, NULL, u, -1, (fsdp_operand[]){source, slot}, 2);
  }
  if (s->shard_count > 1) {
    slot.access = FSDP_READ;
    fsdp_operand operands[2] = {first < 0 ? source : slot,
                                schedule_whole(s, gathered, c->param_dtype, FSDP_WRITE)};
    int gather = schedule_collective(s, FSDP_INSTR_ALL_GATHER, FSDP_GROUP_GATHER, u, operands, 2);
    if (first < 0) first = gather;
  }
  s->program->instrs[first].policy = s->last_compute;
  s->unit[u].gathered = gathered;
}

int schedule_unit_source(const scheduler *s, int u) {
  const fsdp_unit_state *state = &s->plan->unit_state[u];
  if (s->resident) return state->copy >= 0 ? state->copy : state->master;
  FSDP_CHECK(s->unit[u].gathered >= 0, "unit '%s' is used before it is gathered", s->units->units[u].path);
  return s->unit[u].gathered;
}

// Zeroes what lies between and after the parameters: a reduction and an update read the whole buffer.
static void zero_pads(scheduler *s, int u, int tensor, fsdp_dtype dtype) {
  const fsdp_unit *unit = &s->units->units[u];
  int64_t width = fsdp_dtype_bytes(dtype);
  fsdp_operand pads[FSDP_OP_MAX_OPERANDS];
  int count = 0;
  for (int i = 0; i < unit->param_count; i++) {
    const fsdp_unit_param *slot = &s->units->params[unit->first_param + i];
    int64_t begin = slot->offset + s->graph->params[slot->param].numel;
    int64_t end = i + 1 < unit->param_count ? slot[1].offset : unit->padded_numel;
    if (begin < end)
      pads[count++] = (fsdp_operand){.tensor = tensor,
                                     .dtype = dtype,
                                     .access = FSDP_WRITE,
                                     .offset_bytes = begin * width,
                                     .size_bytes = (end - begin) * width};
    if (count && (count == FSDP_OP_MAX_OPERANDS || i + 1 == unit->param_count)) {
      schedule_op(s, FSDP_STREAM_COMPUTE, FSDP_OP_ZERO, NULL, u, -1, pads, count);
      count = 0;
    }
  }
}

int schedule_unit_grad(scheduler *s, int u, bool *carried) {
  *carried = s->carries_grads && !s->is_first;
  if (s->unit[u].grad >= 0) return s->unit[u].grad;
  fsdp_lifetime lifetime = s->direct_grads || s->carries_grads ? FSDP_LIVE_STEP : FSDP_LIVE_SECTION;
  int tensor = unit_tensor(s, u, s->direct_grads ? "grad_shard" : "grad", FSDP_SPACE_DEVICE,
                           FSDP_CATEGORY_GRADIENTS, lifetime, s->units->units[u].padded_numel, s->grad_dtype);
  s->unit[u].grad = tensor;
  if (s->direct_grads) s->plan->unit_state[u].grad_shard = tensor;
  zero_pads(s, u, tensor, s->grad_dtype);
  return tensor;
}

// The gradient shard, made at its first reduction of the step.
static int grad_shard(scheduler *s, int u) {
  int *shard = &s->plan->unit_state[u].grad_shard;
  if (*shard < 0)
    *shard = unit_tensor(s, u, "grad_shard", state_space(s), FSDP_CATEGORY_GRADIENTS, FSDP_LIVE_STEP,
                         s->units->units[u].shard_numel, s->shard_dtype);
  return *shard;
}

static void cast_or_add(scheduler *s, fsdp_stream stream, fsdp_op_kind op, int u, fsdp_operand from, int to) {
  fsdp_operand operands[2] = {
      from, schedule_whole(s, to, s->shard_dtype, op == FSDP_OP_ADD ? FSDP_UPDATE : FSDP_WRITE)};
  operands[0].access = FSDP_READ;
  schedule_op(s, stream, op, NULL, u, -1, operands, 2);
}

static void all_reduce(scheduler *s, int u, fsdp_operand range) {
  range.access = FSDP_UPDATE;
  schedule_collective(s, FSDP_INSTR_ALL_REDUCE, FSDP_GROUP_REPLICA, u, &range, 1);
}

// Sums the shard over the replicas, in reduce dtype.
static void all_reduce_shard(scheduler *s, int u, int shard) {
  fsdp_dtype dtype = s->config->reduce_dtype;
  if (s->shard_dtype == dtype) {
    all_reduce(s, u, schedule_whole(s, shard, dtype, FSDP_UPDATE));
    return;
  }
  int narrow = unit_tensor(s, u, "grad_narrow", FSDP_SPACE_DEVICE, FSDP_CATEGORY_GRADIENTS, FSDP_LIVE_SECTION,
                           s->units->units[u].shard_numel, dtype);
  fsdp_operand down[2] = {schedule_whole(s, shard, s->shard_dtype, FSDP_READ),
                          schedule_whole(s, narrow, dtype, FSDP_WRITE)};
  schedule_op(s, FSDP_STREAM_REDUCE, FSDP_OP_CAST, NULL, u, -1, down, 2);
  all_reduce(s, u, schedule_whole(s, narrow, dtype, FSDP_UPDATE));
  cast_or_add(s, FSDP_STREAM_REDUCE, FSDP_OP_CAST, u, schedule_whole(s, narrow, dtype, FSDP_READ), shard);
}

// The reduced shard to host memory: overwriting what is there, or adding to it.
static void bring_down(scheduler *s, int u, fsdp_operand part, bool overwrite) {
  int shard = grad_shard(s, u);
  part.access = FSDP_READ;
  if (overwrite && part.dtype == s->shard_dtype) {
    schedule_move(s, FSDP_INSTR_COPY_DOWN, u, part, schedule_whole(s, shard, s->shard_dtype, FSDP_WRITE));
    return;
  }
  int staging = unit_tensor(s, u, "grad_staging", FSDP_SPACE_HOST, FSDP_CATEGORY_GRADIENTS, FSDP_LIVE_SECTION,
                            s->units->units[u].shard_numel, part.dtype);
  schedule_move(s, FSDP_INSTR_COPY_DOWN, u, part, schedule_whole(s, staging, part.dtype, FSDP_WRITE));
  cast_or_add(s, FSDP_STREAM_HOST, overwrite ? FSDP_OP_CAST : FSDP_OP_ADD, u,
              schedule_whole(s, staging, part.dtype, FSDP_READ), shard);
}

// Offload: `part` is this micro-batch's reduced shard on the device. The sum over replicas is taken once a
// step, of the whole accumulated shard, so at the last micro-batch the host's share comes up first.
static void reduce_to_host(scheduler *s, int u, fsdp_operand part, bool shard_is_new) {
  bool sums_replicas = s->is_last && s->replica_count > 1;
  if (sums_replicas && !shard_is_new) {
    int raised = unit_tensor(s, u, "grad_raised", FSDP_SPACE_DEVICE, FSDP_CATEGORY_GRADIENTS,
                             FSDP_LIVE_SECTION, s->units->units[u].shard_numel, s->shard_dtype);
    schedule_move(s, FSDP_INSTR_COPY_UP, u, schedule_whole(s, grad_shard(s, u), s->shard_dtype, FSDP_READ),
                  schedule_whole(s, raised, s->shard_dtype, FSDP_WRITE));
    part.access = FSDP_UPDATE;
    fsdp_operand sum[2] = {schedule_whole(s, raised, s->shard_dtype, FSDP_READ), part};
    schedule_op(s, FSDP_STREAM_REDUCE, FSDP_OP_ADD, NULL, u, -1, sum, 2);
  }
  if (sums_replicas) all_reduce(s, u, part);
  bring_down(s, u, part, shard_is_new || sums_replicas);
}

// The full gradient in reduce dtype: itself, or a narrow copy where it was accumulated in fp32.
static fsdp_operand full_gradient(scheduler *s, int u) {
  fsdp_operand full = schedule_whole(s, s->unit[u].grad, s->grad_dtype, FSDP_READ);
  if (s->grad_dtype == s->config->reduce_dtype) return full;
  int narrow = unit_tensor(s, u, "grad_narrow", FSDP_SPACE_DEVICE, FSDP_CATEGORY_GRADIENTS, FSDP_LIVE_SECTION,
                           s->units->units[u].padded_numel, s->config->reduce_dtype);
  fsdp_operand operands[2] = {full, schedule_whole(s, narrow, s->config->reduce_dtype, FSDP_WRITE)};
  schedule_op(s, FSDP_STREAM_REDUCE, FSDP_OP_CAST, NULL, u, -1, operands, 2);
  operands[1].access = FSDP_READ;
  return operands[1];
}

// Scatters the sum of full gradients over the shard group and adds this rank's part to its shard.
static void reduce_full(scheduler *s, int u) {
  bool shard_is_new = s->is_first || s->carries_grads;
  bool offload = s->config->cpu_offload;
  fsdp_operand full = full_gradient(s, u);
  fsdp_operand part = full;
  if (s->shard_count > 1) {
    part = own_slot(s, u, full.tensor, full.dtype, FSDP_WRITE);
    bool ends_in_shard = shard_is_new && !offload && full.dtype == s->shard_dtype;
    if (ends_in_shard) part = schedule_whole(s, grad_shard(s, u), s->shard_dtype, FSDP_WRITE);
    schedule_collective(s, FSDP_INSTR_REDUCE_SCATTER, FSDP_GROUP_REDUCE, u, (fsdp_operand[]){full, part}, 2);
    if (ends_in_shard) return;
  }
  if (offload)
    reduce_to_host(s, u, part, shard_is_new);
  else
    cast_or_add(s, FSDP_STREAM_REDUCE, shard_is_new ? FSDP_OP_CAST : FSDP_OP_ADD, u, part, grad_shard(s, u));
}

void schedule_reduce(scheduler *s, int u) {
  if (s->carries_grads && !s->is_last) return;
  if (!s->direct_grads) {
    reduce_full(s, u);
    s->unit[u].grad = -1;
  }
  if (!s->is_last) return;
  if (s->replica_count > 1 && !s->config->cpu_offload) all_reduce_shard(s, u, grad_shard(s, u));
  schedule_unit_norm(s, u);
  if (s->config->grad_clip == 0)
    schedule_unit_update(s, u, s->config->cpu_offload ? FSDP_STREAM_HOST : FSDP_STREAM_REDUCE);
}
