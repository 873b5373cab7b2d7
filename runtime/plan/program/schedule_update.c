#include "runtime/plan/program/schedule_internal.h"

#include <stdio.h>

// A small tensor of step scalars.
static int scalar_tensor(scheduler *s, const char *what, fsdp_space space, fsdp_lifetime lifetime,
                         int64_t count) {
  return schedule_tensor(s, "step", what, space, FSDP_CATEGORY_INPUTS, lifetime, -1, -1, 4 * count);
}

// An instruction of the host stream that calls the program's user.
static void host_call(scheduler *s, fsdp_instr_kind kind, const fsdp_operand *operands, int count) {
  fsdp_instr instr = {.kind = kind, .stream = FSDP_STREAM_HOST, .unit = -1, .module = -1, .policy = -1};
  fsdp_program_instr(s->program, &instr, operands, count);
}

static void sum_over_world(scheduler *s, int tensor) {
  if (s->rank_count == 1) return;
  fsdp_operand operand = schedule_whole(s, tensor, FSDP_F32, FSDP_UPDATE);
  schedule_collective(s, FSDP_INSTR_ALL_REDUCE, FSDP_GROUP_WORLD, -1, &operand, 1);
}

static void copy_whole(scheduler *s, fsdp_instr_kind kind, int from, int to, fsdp_dtype dtype) {
  schedule_move(s, kind, -1, schedule_whole(s, from, dtype, FSDP_READ),
                schedule_whole(s, to, dtype, FSDP_WRITE));
}

void schedule_begin_step(scheduler *s) {
  fsdp_lifetime lifetime = s->is_training ? FSDP_LIVE_STEP : FSDP_LIVE_SECTION;
  bool offload = s->config->cpu_offload;
  s->host_scalars = scalar_tensor(s, "host_scalars", FSDP_SPACE_HOST, offload ? lifetime : FSDP_LIVE_SECTION,
                                  FSDP_SCALAR_COUNT);
  int host_count = scalar_tensor(s, "host_count", FSDP_SPACE_HOST, FSDP_LIVE_SECTION, 1);
  s->count = scalar_tensor(s, "count", FSDP_SPACE_DEVICE, lifetime, 1);
  s->loss = scalar_tensor(s, "loss", FSDP_SPACE_DEVICE, lifetime, 1);
  fsdp_operand fed[2] = {schedule_whole(s, s->host_scalars, FSDP_F32, FSDP_WRITE),
                         schedule_whole(s, host_count, FSDP_F32, FSDP_WRITE)};
  host_call(s, FSDP_INSTR_FEED_STEP, fed, 2);
  copy_whole(s, FSDP_INSTR_COPY_UP, host_count, s->count, FSDP_F32);
  if (s->is_training) sum_over_world(s, s->count);
  if (!s->is_training) return;
  s->scalars = s->host_scalars;
  if (!offload) {
    s->scalars = scalar_tensor(s, "scalars", FSDP_SPACE_DEVICE, FSDP_LIVE_STEP, FSDP_SCALAR_COUNT);
    copy_whole(s, FSDP_INSTR_COPY_UP, s->host_scalars, s->scalars, FSDP_F32);
  }
  s->norm_partials = scalar_tensor(s, "norm_partials", offload ? FSDP_SPACE_HOST : FSDP_SPACE_DEVICE,
                                   FSDP_LIVE_STEP, s->forward_order_count);
}

void schedule_feed_batch(scheduler *s) {
  const fsdp_graph *g = s->graph;
  const int values[2] = {g->tokens, g->targets};
  fsdp_operand fed[2];
  int host[2];
  for (int i = 0; i < 2; i++) {
    const fsdp_value *v = &g->values[values[i]];
    char name[FSDP_NAME_BYTES + 8];
    snprintf(name, sizeof name, "host_%s", v->name);
    host[i] = scalar_tensor(s, name, FSDP_SPACE_HOST, FSDP_LIVE_SECTION, v->numel);
    s->tensor_of_value[values[i]] = scalar_tensor(s, v->name, FSDP_SPACE_DEVICE, FSDP_LIVE_SECTION, v->numel);
    fed[i] = schedule_whole(s, host[i], FSDP_I32, FSDP_WRITE);
  }
  host_call(s, FSDP_INSTR_FEED_BATCH, fed, 2);
  for (int i = 0; i < 2; i++)
    copy_whole(s, FSDP_INSTR_COPY_UP, host[i], s->tensor_of_value[values[i]], FSDP_I32);
}

void schedule_unit_norm(scheduler *s, int u) {
  fsdp_operand slot = schedule_whole(s, s->norm_partials, FSDP_F32, FSDP_WRITE);
  slot.offset_bytes = 4 * s->partial_count++;
  slot.size_bytes = 4;
  bool offload = s->config->cpu_offload;
  const fsdp_unit *unit = &s->units->units[u];
  fsdp_operand operands[3] = {schedule_whole(s, s->plan->unit_state[u].grad_shard, s->shard_dtype, FSDP_READ),
                              slot};
  int count = 2;
  // Offloaded shards are squared by the host's kernels, whatever the device.
  fsdp_op_device device = offload ? FSDP_OP_CPU : s->config->target->device;
  int64_t scratch =
      fsdp_op_workspace_bytes(device, FSDP_OP_SUM_SQUARES, &(fsdp_op_attrs){0}, unit->shard_numel);
  if (scratch) {
    int tensor = schedule_tensor(s, unit->path, "norm_workspace", FSDP_SPACE_DEVICE, FSDP_CATEGORY_WORKSPACE,
                                 FSDP_LIVE_SECTION, u, unit->module, scratch);
    operands[count++] = schedule_whole(s, tensor, FSDP_F32, FSDP_WRITE);
  }
  schedule_op(s, offload ? FSDP_STREAM_HOST : FSDP_STREAM_REDUCE, FSDP_OP_SUM_SQUARES, NULL, u, -1, operands,
              count);
}

void schedule_unit_update(scheduler *s, int u, fsdp_stream stream) {
  const fsdp_plan_config *c = s->config;
  const fsdp_unit_state *state = &s->plan->unit_state[u];
  fsdp_op_attrs attrs = {
      .beta1 = c->beta1, .beta2 = c->beta2, .adam_eps = c->adam_eps, .weight_decay = c->weight_decay};
  fsdp_operand factor;
  if (c->grad_clip > 0) {
    factor = schedule_whole(s, s->factor, FSDP_F32, FSDP_READ);
  } else {
    factor = schedule_whole(s, s->scalars, FSDP_F32, FSDP_READ);
    factor.offset_bytes = 4 * FSDP_SCALAR_ONE;
    factor.size_bytes = 4;
  }
  fsdp_operand operands[7] = {
      schedule_whole(s, state->grad_shard, s->shard_dtype, FSDP_READ),
      schedule_whole(s, s->scalars, FSDP_F32, FSDP_READ),
      factor,
      schedule_whole(s, state->master, c->master_dtype, FSDP_UPDATE),
      schedule_whole(s, state->moment1, c->moment_dtype, FSDP_UPDATE),
      schedule_whole(s, state->moment2, c->moment_dtype, FSDP_UPDATE),
  };
  int count = 6;
  if (state->copy >= 0) operands[count++] = schedule_whole(s, state->copy, c->param_dtype, FSDP_WRITE);
  schedule_op(s, stream, FSDP_OP_ADAMW, &attrs, u, -1, operands, count);
}

// Norm and clip factor from the units' parts. Shards are summed over all ranks; every replica holds the same
// shards, so the sum is divided by their number.
static void norm_and_factor(scheduler *s) {
  bool offload = s->config->cpu_offload;
  fsdp_space space = offload ? FSDP_SPACE_HOST : FSDP_SPACE_DEVICE;
  fsdp_stream stream = offload ? FSDP_STREAM_HOST : FSDP_STREAM_COMPUTE;
  int total = scalar_tensor(s, "norm_total", space, FSDP_LIVE_SECTION, 1);
  fsdp_operand sum[2] = {schedule_whole(s, s->norm_partials, FSDP_F32, FSDP_READ),
                         schedule_whole(s, total, FSDP_F32, FSDP_WRITE)};
  schedule_op(s, stream, FSDP_OP_SUM, NULL, -1, -1, sum, 2);
  if (offload && s->rank_count > 1) { // collectives take device memory
    int raised = scalar_tensor(s, "norm_raised", FSDP_SPACE_DEVICE, FSDP_LIVE_SECTION, 1);
    copy_whole(s, FSDP_INSTR_COPY_UP, total, raised, FSDP_F32);
    sum_over_world(s, raised);
    total = scalar_tensor(s, "norm_world", space, FSDP_LIVE_SECTION, 1);
    copy_whole(s, FSDP_INSTR_COPY_DOWN, raised, total, FSDP_F32);
  } else {
    sum_over_world(s, total);
  }
  s->norm = scalar_tensor(s, "norm", space, FSDP_LIVE_SECTION, 1);
  s->factor = scalar_tensor(s, "factor", space, FSDP_LIVE_SECTION, 1);
  const fsdp_plan_config *c = s->config;
  fsdp_op_attrs attrs = {.max_norm = c->grad_clip,
                         .norm_scale = 1.0f / (float)s->replica_count,
                         .norm_limit = fsdp_plan_norm_limit(c)};
  fsdp_operand clip[3] = {schedule_whole(s, total, FSDP_F32, FSDP_READ),
                          schedule_whole(s, s->norm, FSDP_F32, FSDP_WRITE),
                          schedule_whole(s, s->factor, FSDP_F32, FSDP_WRITE)};
  schedule_op(s, stream, FSDP_OP_CLIP_FACTOR, &attrs, -1, -1, clip, 3);
}

void schedule_update_section(scheduler *s) {
  sum_over_world(s, s->loss);
  norm_and_factor(s);
  int host_loss = scalar_tensor(s, "host_loss", FSDP_SPACE_HOST, FSDP_LIVE_SECTION, 1);
  copy_whole(s, FSDP_INSTR_COPY_DOWN, s->loss, host_loss, FSDP_F32);
  int host_norm = s->norm;
  if (!s->config->cpu_offload) {
    host_norm = scalar_tensor(s, "host_norm", FSDP_SPACE_HOST, FSDP_LIVE_SECTION, 1);
    copy_whole(s, FSDP_INSTR_COPY_DOWN, s->norm, host_norm, FSDP_F32);
  }
  fsdp_operand results[2] = {schedule_whole(s, host_loss, FSDP_F32, FSDP_READ),
                             schedule_whole(s, host_norm, FSDP_F32, FSDP_READ)};
  host_call(s, FSDP_INSTR_PUBLISH, results, 2);
  if (s->config->grad_clip == 0) return; // updated behind the reductions
  for (int i = 0; i < s->forward_order_count; i++)
    schedule_unit_update(s, s->forward_order[i],
                         s->config->cpu_offload ? FSDP_STREAM_HOST : FSDP_STREAM_COMPUTE);
}

void schedule_evaluation_result(scheduler *s) {
  sum_over_world(s, s->loss);
  int host_loss = scalar_tensor(s, "host_loss", FSDP_SPACE_HOST, FSDP_LIVE_SECTION, 1);
  copy_whole(s, FSDP_INSTR_COPY_DOWN, s->loss, host_loss, FSDP_F32);
  fsdp_operand result = schedule_whole(s, host_loss, FSDP_F32, FSDP_READ);
  host_call(s, FSDP_INSTR_PUBLISH, &result, 1);
}
