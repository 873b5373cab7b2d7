#include "runtime/plan/program/lower.h"

#include "runtime/base/check.h"

static void note_fate(step_builder *s, int tensor, fsdp_fate fate) {
  if (tensor >= s->fate_capacity) {
    int capacity = 2 * tensor + 64;
    s->fate = fsdp_realloc(s->fate, (size_t)capacity * sizeof *s->fate);
    for (int t = s->fate_capacity; t < capacity; t++) s->fate[t] = FSDP_FATE_NONE;
    s->fate_capacity = capacity;
  }
  s->fate[tensor] = fate;
}

static int make_activation(step_builder *s, int module, const char *what, int64_t bytes, fsdp_fate fate) {
  char owner[FSDP_NAME_BYTES];
  fsdp_graph_module_path(s->graph, module, owner);
  int tensor = make_tensor(s, owner, what, FSDP_SPACE_DEVICE, FSDP_CATEGORY_ACTIVATIONS, FSDP_LIVE_SECTION,
                           -1, module, bytes);
  note_fate(s, tensor, fate);
  return tensor;
}

fsdp_operand lower_parameter(const step_builder *s, const fsdp_value *v, fsdp_access access) {
  int unit = s->units->unit_of_param[v->param];
  bool is_weight = v->role == FSDP_VALUE_PARAM;
  fsdp_dtype dtype = is_weight ? s->config->param_dtype : s->modes.grad_dtype;
  int64_t width = fsdp_dtype_bytes(dtype);
  // The first contribution of the step (or of the micro-batch, if nothing is carried over) overwrites.
  bool carried = s->modes.carries_grads && !s->is_first;
  return (fsdp_operand){.tensor = is_weight ? FSDP_UNIT_WEIGHTS(unit) : FSDP_UNIT_GRADIENT(unit),
                        .dtype = dtype,
                        .access = is_weight ? FSDP_READ
                                  : carried ? FSDP_UPDATE
                                            : access,
                        .offset.base = s->units->params[s->units->slot_of_param[v->param]].offset * width,
                        .size_bytes = v->local_numel * width};
}

// The place of a loss among those of the step, to which every micro-batch adds; behind them are statistics.
static fsdp_operand loss_range(const step_builder *s, int value) {
  fsdp_operand range = make_whole(s, s->losses, FSDP_F32, s->is_first ? FSDP_WRITE : FSDP_UPDATE);
  const fsdp_value *v = &s->graph->values[value];
  range.size_bytes = 4 * v->numel;
  if (v->role == FSDP_VALUE_STATISTIC) {
    range.offset.base += 4 * (s->graph->loss_count + v->place);
    return range;
  }
  for (int i = 0; s->graph->losses[i] != value; i++) range.offset.base += 4;
  return range;
}

fsdp_operand lower_operand(lowering *l, const fsdp_node_operand *o) {
  step_builder *s = l->s;
  const fsdp_value *v = &s->graph->values[o->value];
  switch (v->role) {
  case FSDP_VALUE_PARAM:
  case FSDP_VALUE_PARAM_GRADIENT:
    FSDP_CHECK(!s->graph->params[v->param].transposed, "'%s' is transposed, but not a linear layer's weight",
               v->name);
    return lower_parameter(s, v, o->access);
  case FSDP_VALUE_LOSS:
  case FSDP_VALUE_STATISTIC:
    return loss_range(s, o->value);
  case FSDP_VALUE_INPUT:
  case FSDP_VALUE_COUNT_SCALAR:
  case FSDP_VALUE_ACTIVATION:
  case FSDP_VALUE_GRADIENT:
    break;
  }
  int *tensor = &l->tensor_of_value[o->value];
  if (o->access == FSDP_WRITE)
    *tensor =
        make_activation(s, v->module, v->name, fsdp_graph_bytes(s->graph, o->value, s->config->param_dtype),
                        s->fates[o->value]);
  FSDP_CHECK(*tensor >= 0, "value '%s' is used before it is made", v->name);
  return make_whole(s, *tensor, fsdp_graph_dtype(s->graph, o->value, s->config->param_dtype), o->access);
}

void lower_mark(lowering *l, const fsdp_node *node, int index) {
  fsdp_list_node *made = &l->s->nodes.nodes[index];
  made->instr.module = node->module;
  made->origin = l->origin;
  made->block = node->block;
  made->is_backward = l->is_backward;
}

void lower_op(lowering *l, const fsdp_node *node, const fsdp_op_attrs *attrs, const fsdp_operand *operands,
              int count) {
  int index = make_op(l->s, FSDP_STREAM_COMPUTE, node->kind, attrs, -1, operands, count);
  fsdp_instr *instr = &l->s->nodes.nodes[index].instr;
  instr->first_index = node->first_index;
  instr->second_index = node->second_index;
  instr->first_row = node->first_row;
  instr->first_head = node->first_head;
  lower_mark(l, node, index);
}

int lower_temporary(lowering *l, const fsdp_node *node, const char *what, int64_t bytes) {
  return make_activation(l->s, node->module, what, bytes, FSDP_FATE_NONE);
}
