// The end of a step: gradient norm, clip factor, the updates that wait for it, and results. Under zero1, then
// the all-gathers of what was updated, in the order of the next forward: each of its units waits for its own.
#include "runtime/base/check.h"
#include "runtime/plan/program/make.h"
#include "runtime/plan/program/passes.h"

void step_unit_update(step_builder *s, int u, fsdp_stream stream) {
  const fsdp_plan_config *c = s->config;
  const fsdp_unit_state *state = &s->unit_state[u];
  FSDP_CHECK(state->grad_shard >= 0, "unit '%s' is updated and has no gradient", s->units->units[u].path);
  fsdp_op_attrs attrs = {0};
  fsdp_operand factor;
  if (c->grad_clip > 0) {
    factor = make_whole(s, s->factor, FSDP_F32, FSDP_READ);
  } else {
    factor = make_whole(s, s->scalars, FSDP_F32, FSDP_READ);
    factor.offset.base = 4 * FSDP_SCALAR_ONE;
    factor.size_bytes = 4;
  }
  const fsdp_optimizer *optimizer = state->optimizer;
  optimizer->attrs(&c->hyper, &attrs);
  fsdp_operand operands[FSDP_UPDATE_FIRST_SLOT + FSDP_SLOTS_MAX + 1] = {
      make_whole(s, state->grad_shard, s->modes.shard_dtype, FSDP_READ),
      make_whole(s, s->scalars, FSDP_F32, FSDP_READ),
      factor,
  };
  int count = FSDP_UPDATE_FIRST_SLOT;
  for (int i = 0; i < optimizer->slot_count; i++) {
    operands[count++] = make_whole(s, state->slot[i], step_slot_dtype(s, u, i), FSDP_UPDATE);
  }
  if (state->copy >= 0) operands[count++] = make_whole(s, state->copy, c->param_dtype, FSDP_WRITE);
  if (state->whole >= 0 && !c->cpu_offload && c->param_dtype != c->master_dtype)
    operands[count++] = make_own_slot(s, u, state->whole, c->param_dtype, FSDP_WRITE);
  make_op(s, stream, optimizer->update, &attrs, u, operands, count);
  if (state->whole >= 0 && c->cpu_offload) step_raise_slot(s, u);
}

// Norm and clip factor from the units' parts, summed over all ranks. Each part is weighted by its unit's
// replicas, which hold the same shard, so every element counts once. Returns the norm's tensor.
static int norm_and_factor(step_builder *s) {
  bool offload = s->config->cpu_offload;
  fsdp_space space = step_state_space(s);
  fsdp_stream stream = offload ? FSDP_STREAM_HOST : FSDP_STREAM_COMPUTE;
  int total = make_scalars(s, "norm_total", space, FSDP_LIVE_SECTION, 1);
  fsdp_operand sum[2] = {make_whole(s, s->norm_partials, FSDP_F32, FSDP_READ),
                         make_whole(s, total, FSDP_F32, FSDP_WRITE)};
  make_op(s, stream, FSDP_PLAN_OP_SUM, NULL, -1, sum, 2);
  const fsdp_axis_set all = fsdp_mesh_all_axes(&s->program->mesh);
  if (offload && all) { // collectives require device memory
    int raised = make_scalars(s, "norm_raised", FSDP_SPACE_DEVICE, FSDP_LIVE_SECTION, 1);
    make_copy_whole(s, FSDP_INSTR_H2D, total, raised, FSDP_F32);
    make_sum(s, raised, all);
    total = make_scalars(s, "norm_world", space, FSDP_LIVE_SECTION, 1);
    make_copy_whole(s, FSDP_INSTR_D2H, raised, total, FSDP_F32);
  } else {
    make_sum(s, total, all);
  }
  int norm = make_scalars(s, "norm", space, FSDP_LIVE_SECTION, 1);
  s->factor = make_scalars(s, "factor", space, FSDP_LIVE_SECTION, 1);
  const fsdp_plan_config *c = s->config;
  fsdp_op_attrs attrs = {.max_norm = c->grad_clip, .norm_limit = fsdp_plan_norm_limit(c)};
  fsdp_operand clip[3] = {make_whole(s, total, FSDP_F32, FSDP_READ),
                          make_whole(s, norm, FSDP_F32, FSDP_WRITE),
                          make_whole(s, s->factor, FSDP_F32, FSDP_WRITE)};
  make_op(s, stream, FSDP_PLAN_OP_CLIP, &attrs, -1, clip, 3);
  return norm;
}

// Scalars in host memory.
static int bring_down(step_builder *s, int tensor, const char *name) {
  int host = make_scalars(s, name, FSDP_SPACE_HOST, FSDP_LIVE_SECTION, s->program->tensors[tensor].bytes / 4);
  make_copy_whole(s, FSDP_INSTR_D2H, tensor, host, FSDP_F32);
  return host;
}

void pass_update(step_builder *s) {
  FSDP_CHECK(4 * s->partial_count == s->program->tensors[s->norm_partials].bytes,
             "%d units of those that train were reduced", s->partial_count);
  bool offload = s->config->cpu_offload;
  bool has_slots = offload || s->config->param_dtype != s->config->master_dtype;
  make_sum(s, s->losses, s->graph->token_axes);
  int norm = norm_and_factor(s);
  int host_loss = bring_down(s, s->losses, "host_loss");
  int host_norm = offload ? norm : bring_down(s, norm, "host_norm");
  fsdp_operand results[2] = {make_whole(s, host_loss, FSDP_F32, FSDP_READ),
                             make_whole(s, host_norm, FSDP_F32, FSDP_READ)};
  make_host_call(s, FSDP_INSTR_PUBLISH, results, 2);
  for (int i = 0; i < s->forward_order_count; i++) {
    int u = s->forward_order[i];
    if (!s->units->units[u].trainable) continue;
    if (s->config->grad_clip > 0) // else units are updated right after their reductions
      step_unit_update(s, u, offload ? FSDP_STREAM_HOST : FSDP_STREAM_COMPUTE);
    if (s->unit_state[u].whole >= 0) step_gather_shards(s, u, s->unit_state[u].whole, has_slots);
  }
}

void pass_evaluation_result(step_builder *s) {
  make_sum(s, s->losses, s->graph->token_axes);
  fsdp_operand results[2] = {make_whole(s, bring_down(s, s->losses, "host_loss"), FSDP_F32, FSDP_READ)};
  if (s->config->logits) {
    s->program->logits = bring_down(s, s->logits, "host_logits");
    results[1] = make_whole(s, s->program->logits, FSDP_F32, FSDP_READ);
  }
  make_host_call(s, FSDP_INSTR_PUBLISH, results, 1 + s->config->logits);
}
