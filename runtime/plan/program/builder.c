#include "runtime/plan/program/builder.h"

bool step_holds_all(const step_builder *s, int u) {
  return !s->config->cpu_offload && s->units->units[u].shard_count == 1;
}

bool step_keeps_parameters(const fsdp_plan_config *c) {
  return c->strategy == FSDP_NO || c->strategy == FSDP_ZERO1;
}

bool step_is_resident(const step_builder *s, int u) {
  const fsdp_plan_config *c = s->config;
  if (s->unit_state[u].whole >= 0) return true;
  return step_holds_all(s, u) && (step_keeps_parameters(c) || c->param_dtype == c->master_dtype);
}

bool step_stays_gathered(const step_builder *s, int u) {
  return s->is_training && (s->modes.keeps_gathered || s->units->units[u].module == 0);
}

fsdp_dtype step_slot_dtype(const step_builder *s, int u, int slot) {
  return fsdp_slot_dtype_of(&s->unit_state[u].optimizer->slots[slot], s->config->master_dtype,
                            s->config->moment_dtype);
}

fsdp_space step_state_space(const step_builder *s) {
  return s->config->cpu_offload ? FSDP_SPACE_HOST : FSDP_SPACE_DEVICE;
}
