#include "runtime/plan/program/make.h"
#include "runtime/plan/program/passes.h"

#include <stdio.h>

void pass_step_inputs(step_builder *s) {
  fsdp_lifetime lifetime = s->is_training ? FSDP_LIVE_STEP : FSDP_LIVE_SECTION;
  bool offload = s->config->cpu_offload;
  s->host_scalars = make_scalars(s, "host_scalars", FSDP_SPACE_HOST, offload ? lifetime : FSDP_LIVE_SECTION,
                                 FSDP_SCALAR_COUNT);
  int host_count = make_scalars(s, "host_count", FSDP_SPACE_HOST, FSDP_LIVE_SECTION, 1);
  s->count = make_scalars(s, "count", FSDP_SPACE_DEVICE, lifetime, 1);
  s->losses =
      make_scalars(s, "loss", FSDP_SPACE_DEVICE, lifetime, s->graph->loss_count + s->graph->statistic_numel);
  fsdp_operand fed[3] = {make_whole(s, s->host_scalars, FSDP_F32, FSDP_WRITE),
                         make_whole(s, host_count, FSDP_F32, FSDP_WRITE)};
  const bool has_row = !s->is_training && s->config->logits;
  if (has_row) {
    const int host_row = make_scalars(s, "host_row", FSDP_SPACE_HOST, FSDP_LIVE_SECTION, 1);
    s->row = make_scalars(s, "row", FSDP_SPACE_DEVICE, FSDP_LIVE_SECTION, 1);
    fed[2] = make_whole(s, host_row, FSDP_I32, FSDP_WRITE);
  }
  make_host_call(s, FSDP_INSTR_FEED_STEP, fed, 2 + has_row);
  make_copy_whole(s, FSDP_INSTR_H2D, host_count, s->count, FSDP_F32);
  if (has_row) make_copy_whole(s, FSDP_INSTR_H2D, fed[2].tensor, s->row, FSDP_I32);
  if (!s->is_training) return; // an evaluation's count covers all ranks already
  make_sum(s, s->count, s->graph->token_axes);
  s->scalars = s->host_scalars;
  if (!offload) {
    s->scalars = make_scalars(s, "scalars", FSDP_SPACE_DEVICE, FSDP_LIVE_STEP, FSDP_SCALAR_COUNT);
    make_copy_whole(s, FSDP_INSTR_H2D, s->host_scalars, s->scalars, FSDP_F32);
  }
  int trained = 0;
  for (int i = 0; i < s->forward_order_count; i++) trained += s->units->units[s->forward_order[i]].trainable;
  s->norm_partials = make_scalars(s, "norm_partials", step_state_space(s), FSDP_LIVE_STEP, trained);
}

void pass_batch_inputs(step_builder *s) {
  const fsdp_graph *g = s->graph;
  fsdp_operand fed[FSDP_INPUT_COUNT];
  int made[FSDP_INPUT_COUNT], count = 0;
  for (int i = 0; i < FSDP_INPUT_COUNT; i++) {
    if (g->inputs[i] < 0) continue;
    const fsdp_value *v = &g->values[g->inputs[i]];
    char name[FSDP_NAME_BYTES + 8];
    snprintf(name, sizeof name, "host_%s", v->name);
    int host = make_scalars(s, name, FSDP_SPACE_HOST, FSDP_LIVE_SECTION, v->local_numel);
    made[count] = s->inputs[i] =
        make_scalars(s, v->name, FSDP_SPACE_DEVICE, FSDP_LIVE_SECTION, v->local_numel);
    fed[count++] = make_whole(s, host, FSDP_I32, FSDP_WRITE);
  }
  make_host_call(s, FSDP_INSTR_FEED_BATCH, fed, count);
  for (int i = 0; i < count; i++) make_copy_whole(s, FSDP_INSTR_H2D, fed[i].tensor, made[i], FSDP_I32);
}
