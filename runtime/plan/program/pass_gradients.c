// Gradients: the buffer that holds a unit's full gradient, and its reduction to this rank's shard after the
// last contribution. That is: reduce-scatter over the shard group, all-reduce over replicas, the sum over
// micro-batches, the copy to the host under offload, the unit's part of the norm, and, without clipping, the
// update.
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/program/make.h"
#include "runtime/plan/program/passes.h"

// Zeroes the padding between and after the parameters: reductions and updates read the whole buffer.
static void zero_pads(step_builder *s, int u, int tensor) {
  const fsdp_unit *unit = &s->units->units[u];
  int64_t width = fsdp_dtype_bytes(s->modes.grad_dtype);
  fsdp_operand pads[FSDP_OP_MAX_OPERANDS];
  int count = 0;
  for (int i = 0; i < unit->param_count; i++) {
    const fsdp_unit_param *slot = &s->units->params[unit->first_param + i];
    int64_t begin = slot->offset + fsdp_units_local_numel(s->graph, slot->param);
    int64_t end = i + 1 < unit->param_count ? slot[1].offset : unit->padded_numel;
    if (begin < end)
      pads[count++] = (fsdp_operand){.tensor = tensor,
                                     .dtype = s->modes.grad_dtype,
                                     .access = FSDP_WRITE,
                                     .offset.base = begin * width,
                                     .size_bytes = (end - begin) * width};
    if (count && (count == FSDP_OP_MAX_OPERANDS || i + 1 == unit->param_count)) {
      make_op(s, FSDP_STREAM_COMPUTE, FSDP_PLAN_OP_ZERO, NULL, u, pads, count);
      count = 0;
    }
  }
}

// The buffer of unit `u`'s full gradient; a new one is made ready at the cursor.
static int full_gradient_tensor(step_builder *s, int u) {
  if (s->gradient[u] >= 0) return s->gradient[u];
  FSDP_CHECK(s->units->units[u].trainable, "unit '%s' does not train and has a gradient",
             s->units->units[u].path);
  bool direct = s->modes.direct_grads;
  fsdp_lifetime lifetime = direct || s->modes.carries_grads ? FSDP_LIVE_STEP : FSDP_LIVE_SECTION;
  s->gradient[u] =
      make_unit_tensor(s, u, direct ? "grad_shard" : "grad", FSDP_SPACE_DEVICE, FSDP_CATEGORY_GRADIENTS,
                       lifetime, s->units->units[u].padded_numel, s->modes.grad_dtype);
  if (direct) s->unit_state[u].grad_shard = s->gradient[u];
  zero_pads(s, u, s->gradient[u]);
  return s->gradient[u];
}

// The gradient shard, made at its first reduction of the step.
static int grad_shard(step_builder *s, int u) {
  int *shard = &s->unit_state[u].grad_shard;
  if (*shard < 0)
    *shard = make_unit_tensor(s, u, "grad_shard", step_state_space(s), FSDP_CATEGORY_GRADIENTS,
                              FSDP_LIVE_STEP, s->units->units[u].shard_numel, s->modes.shard_dtype);
  return *shard;
}

static void all_reduce(step_builder *s, int u, fsdp_operand range) {
  make_collective(s, FSDP_INSTR_ALL_REDUCE, s->units->units[u].sum_axes, FSDP_STREAM_REDUCE, u, &range);
}

// Sums the shard over the replicas, in reduce dtype.
static void all_reduce_shard(step_builder *s, int u, int shard) {
  fsdp_dtype dtype = s->config->reduce_dtype, shard_dtype = s->modes.shard_dtype;
  if (shard_dtype == dtype) {
    all_reduce(s, u, make_whole(s, shard, dtype, FSDP_UPDATE));
    return;
  }
  int narrow = make_unit_tensor(s, u, "grad_narrow", FSDP_SPACE_DEVICE, FSDP_CATEGORY_GRADIENTS,
                                FSDP_LIVE_SECTION, s->units->units[u].shard_numel, dtype);
  const fsdp_operand wide = make_whole(s, shard, shard_dtype, FSDP_WRITE),
                     reduced = make_whole(s, narrow, dtype, FSDP_WRITE);
  make_move(s, FSDP_STREAM_SHARD, u, wide, reduced);
  all_reduce(s, u, reduced);
  make_move(s, FSDP_STREAM_SHARD, u, reduced, wide);
}

// The reduced shard to host memory: overwriting what is there, or adding to it.
static void bring_down(step_builder *s, int u, fsdp_operand part, bool overwrite) {
  int shard = grad_shard(s, u);
  part.access = FSDP_READ;
  if (overwrite && part.dtype == s->modes.shard_dtype) {
    make_copy(s, FSDP_INSTR_D2H, u, part, make_whole(s, shard, s->modes.shard_dtype, FSDP_WRITE));
    return;
  }
  int staging = make_unit_tensor(s, u, "grad_staging", FSDP_SPACE_HOST, FSDP_CATEGORY_GRADIENTS,
                                 FSDP_LIVE_SECTION, s->units->units[u].shard_numel, part.dtype);
  make_copy(s, FSDP_INSTR_D2H, u, part, make_whole(s, staging, part.dtype, FSDP_WRITE));
  make_move(s, FSDP_STREAM_HOST, u, make_whole(s, staging, part.dtype, FSDP_READ),
            make_whole(s, shard, s->modes.shard_dtype, overwrite ? FSDP_WRITE : FSDP_UPDATE));
}

// Offload: `part` is this micro-batch's reduced shard on the device. The sum over replicas is taken once per
// step, of the whole accumulated shard, so at the last micro-batch the host's part is copied to the device
// first.
static void reduce_to_host(step_builder *s, int u, fsdp_operand part, bool shard_is_new) {
  bool sums_replicas = s->is_last && s->units->units[u].sum_count > 1;
  fsdp_dtype dtype = s->modes.shard_dtype;
  if (sums_replicas && !shard_is_new) {
    int raised = make_unit_tensor(s, u, "grad_raised", FSDP_SPACE_DEVICE, FSDP_CATEGORY_GRADIENTS,
                                  FSDP_LIVE_SECTION, s->units->units[u].shard_numel, dtype);
    make_copy(s, FSDP_INSTR_H2D, u, make_whole(s, grad_shard(s, u), dtype, FSDP_READ),
              make_whole(s, raised, dtype, FSDP_WRITE));
    part.access = FSDP_UPDATE;
    make_move(s, FSDP_STREAM_SHARD, u, make_whole(s, raised, dtype, FSDP_READ), part);
  }
  if (sums_replicas) all_reduce(s, u, part);
  bring_down(s, u, part, shard_is_new || sums_replicas);
}

// The full gradient in reduce dtype: itself, or a narrower copy if it was accumulated in fp32.
static fsdp_operand full_gradient(step_builder *s, int u) {
  fsdp_operand full = make_whole(s, s->gradient[u], s->modes.grad_dtype, FSDP_READ);
  if (s->modes.grad_dtype == s->config->reduce_dtype) return full;
  int narrow = make_unit_tensor(s, u, "grad_narrow", FSDP_SPACE_DEVICE, FSDP_CATEGORY_GRADIENTS,
                                FSDP_LIVE_SECTION, s->units->units[u].padded_numel, s->config->reduce_dtype);
  fsdp_operand reduced = make_whole(s, narrow, s->config->reduce_dtype, FSDP_WRITE);
  make_move(s, FSDP_STREAM_SHARD, u, full, reduced);
  reduced.access = FSDP_READ;
  return reduced;
}

// Scatters the sum of full gradients over the shard group and adds this rank's part to its shard.
static void reduce_full(step_builder *s, int u) {
  bool shard_is_new = s->is_first || s->modes.carries_grads;
  bool offload = s->config->cpu_offload;
  fsdp_operand full = full_gradient(s, u);
  fsdp_operand part = full;
  const fsdp_unit *unit = &s->units->units[u];
  if (unit->shard_count > 1) {
    part = make_own_slot(s, u, full.tensor, full.dtype, FSDP_WRITE);
    bool ends_in_shard = shard_is_new && !offload && full.dtype == s->modes.shard_dtype;
    if (ends_in_shard) part = make_whole(s, grad_shard(s, u), s->modes.shard_dtype, FSDP_WRITE);
    make_collective(s, FSDP_INSTR_REDUCE_SCATTER, unit->shard_axes, FSDP_STREAM_REDUCE, u,
                    (fsdp_operand[]){full, part});
    if (ends_in_shard) return;
  }
  if (offload)
    reduce_to_host(s, u, part, shard_is_new);
  else
    make_move(s, FSDP_STREAM_SHARD, u, part,
              make_whole(s, grad_shard(s, u), s->modes.shard_dtype, shard_is_new ? FSDP_WRITE : FSDP_UPDATE));
}

// Unit `u`'s part of the gradient norm: the squares of its final shard.
static void sum_squares(step_builder *s, int u) {
  fsdp_operand slot = make_whole(s, s->norm_partials, FSDP_F32, FSDP_WRITE);
  slot.offset.base = 4 * s->partial_count++;
  slot.size_bytes = 4;
  bool offload = s->config->cpu_offload;
  const fsdp_unit *unit = &s->units->units[u];
  fsdp_operand operands[3] = {make_whole(s, s->unit_state[u].grad_shard, s->modes.shard_dtype, FSDP_READ),
                              slot};
  int count = 2;
  // Offloaded shards are squared by the host's kernels, whatever the device.
  fsdp_op_device device = offload ? FSDP_OP_CPU : s->config->backend->device;
  fsdp_op_attrs attrs = {.norm_weight = unit->norm_weight};
  int64_t scratch = fsdp_op_workspace_bytes(device, FSDP_PLAN_OP_SUM_SQUARES, &attrs, unit->shard_numel);
  if (scratch) {
    int tensor = make_tensor(s, unit->path, "norm_workspace", FSDP_SPACE_DEVICE, FSDP_CATEGORY_WORKSPACE,
                             FSDP_LIVE_SECTION, u, unit->module, scratch);
    operands[count++] = make_whole(s, tensor, FSDP_F32, FSDP_WRITE);
  }
  make_op(s, offload ? FSDP_STREAM_HOST : FSDP_STREAM_SHARD, FSDP_PLAN_OP_SUM_SQUARES, &attrs, u, operands,
          count);
}

// After the last contribution to unit `u`'s gradient in this micro-batch, at the cursor.
static void reduce_unit(step_builder *s, int u) {
  if (s->modes.carries_grads && !s->is_last) return;
  if (!s->modes.direct_grads) {
    reduce_full(s, u);
    s->gradient[u] = -1;
  }
  if (!s->is_last) return;
  if (s->units->units[u].sum_count > 1 && !s->config->cpu_offload) all_reduce_shard(s, u, grad_shard(s, u));
  sum_squares(s, u);
  if (s->config->grad_clip == 0)
    step_unit_update(s, u, s->config->cpu_offload ? FSDP_STREAM_HOST : FSDP_STREAM_SHARD);
}

// Whether use `n` of unit `u`'s gradient is the last one.
static bool ends_gradient(const fsdp_nodes *list, const fsdp_uses *uses, int u, int n) {
  int count;
  const fsdp_use *use = fsdp_uses_of(uses, FSDP_UNIT_GRADIENT(u), &count);
  return list->nodes[use[count - 1].node].origin == list->nodes[n].origin;
}

// Gives the gradients that nodes [begin, end), of one origin, contribute to their buffers; reductions follow
// at `end`.
static void finish_origin(step_builder *s, const fsdp_uses *uses, int begin, int end) {
  fsdp_nodes *list = &s->nodes;
  int finished[FSDP_OP_MAX_OPERANDS * FSDP_NODE_MAX_WEIGHTS], count = 0;
  for (int n = begin; n != end; n = list->nodes[n].next) {
    for (int o = 0; o < list->nodes[n].operand_count; o++) {
      int u = fsdp_gradient_unit(list->nodes[n].operands[o].tensor);
      if (u < 0) continue;
      list->cursor = n;
      int tensor = full_gradient_tensor(s, u);
      list->nodes[n].operands[o].tensor = tensor;
      bool known = false;
      for (int i = 0; i < count; i++) known |= finished[i] == u;
      if (!known && ends_gradient(list, uses, u, n)) finished[count++] = u;
    }
  }
  list->cursor = end;
  for (int i = 0; i < count; i++) reduce_unit(s, finished[i]);
  list->cursor = FSDP_NO_NODE;
}

void pass_gradients(step_builder *s) {
  fsdp_uses uses = fsdp_uses_create(&s->nodes, s->program->tensor_count, s->units->count);
  for (int n = s->nodes.first; n != FSDP_NO_NODE;) {
    int end = fsdp_nodes_after_origin(&s->nodes, n);
    finish_origin(s, &uses, n, end);
    n = end;
  }
  fsdp_uses_release(&uses);
}
