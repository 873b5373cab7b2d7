#include "runtime/plan/program/schedule_internal.h"

#include "runtime/base/check.h"

#include <string.h>

// A new tensor for a value that this node writes.
static int value_tensor(scheduler *s, int value) {
  const fsdp_value *v = &s->graph->values[value];
  fsdp_dtype dtype = v->dtype == FSDP_VALUE_COMPUTE ? s->config->param_dtype : FSDP_F32;
  char owner[FSDP_NAME_BYTES];
  fsdp_graph_module_path(s->graph, v->module, owner);
  return schedule_tensor(s, owner, v->name, FSDP_SPACE_DEVICE, FSDP_CATEGORY_ACTIVATIONS, FSDP_LIVE_SECTION,
                         -1, v->module, v->numel * fsdp_dtype_bytes(dtype));
}

// The range of parameter `param` inside a buffer that holds its whole unit.
static fsdp_operand param_range(const scheduler *s, int tensor, int param, fsdp_dtype dtype,
                                fsdp_access access) {
  const fsdp_unit_param *slot = &s->units->params[s->units->slot_of_param[param]];
  int64_t width = fsdp_dtype_bytes(dtype);
  return (fsdp_operand){.tensor = tensor,
                        .dtype = dtype,
                        .access = access,
                        .offset_bytes = slot->offset * width,
                        .size_bytes = s->graph->params[param].numel * width};
}

static fsdp_operand weight_operand(const scheduler *s, int value) {
  int param = s->graph->values[value].param;
  int tensor = schedule_unit_source(s, s->units->unit_of_param[param]);
  return param_range(s, tensor, param, s->config->param_dtype, FSDP_READ);
}

// Where a parameter's gradient goes: overwritten by its first contribution of the step (or of the
// micro-batch, where nothing is carried over), added to by every other.
static fsdp_operand gradient_operand(scheduler *s, int value, fsdp_access access) {
  int param = s->graph->values[value].param;
  bool carried = false;
  int tensor = schedule_unit_grad(s, s->units->unit_of_param[param], &carried);
  return param_range(s, tensor, param, s->grad_dtype, carried ? FSDP_UPDATE : access);
}

static fsdp_operand operand_of(scheduler *s, const fsdp_node_operand *o) {
  const fsdp_value *v = &s->graph->values[o->value];
  switch (v->role) {
  case FSDP_VALUE_PARAM:
    return weight_operand(s, o->value);
  case FSDP_VALUE_PARAM_GRADIENT:
    return gradient_operand(s, o->value, o->access);
  case FSDP_VALUE_COUNT_SCALAR:
    return schedule_whole(s, s->count, FSDP_F32, FSDP_READ);
  case FSDP_VALUE_LOSS:
    return schedule_whole(s, s->loss, FSDP_F32, s->is_first ? FSDP_WRITE : FSDP_UPDATE);
  case FSDP_VALUE_INPUT:
    return schedule_whole(s, s->tensor_of_value[o->value], FSDP_I32, FSDP_READ);
  case FSDP_VALUE_ACTIVATION:
  case FSDP_VALUE_GRADIENT:
    break;
  }
  if (o->access == FSDP_WRITE) s->tensor_of_value[o->value] = value_tensor(s, o->value);
  FSDP_CHECK(s->tensor_of_value[o->value] >= 0, "value '%s' is used before it is made", v->name);
  fsdp_dtype dtype = v->dtype == FSDP_VALUE_COMPUTE ? s->config->param_dtype : FSDP_F32;
  return schedule_whole(s, s->tensor_of_value[o->value], dtype, o->access);
}

static void schedule_plain(scheduler *s, const fsdp_node *node) {
  fsdp_operand operands[FSDP_OP_MAX_OPERANDS];
  int count = 0;
  for (int i = 0; i < node->operand_count; i++) operands[count++] = operand_of(s, &node->operands[i]);
  fsdp_op_attrs attrs = node->attrs;
  if (node->kind == FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD)
    attrs.chunk_rows = fsdp_op_chunk_rows(attrs.batch * attrs.seq, attrs.vocabulary, operands[6].dtype);
  int64_t scratch = fsdp_op_workspace_bytes(s->config->target->device, node->kind, &attrs, 0);
  if (scratch) {
    FSDP_CHECK(count < FSDP_OP_MAX_OPERANDS, "no room for the workspace of %s", fsdp_op_name(node->kind));
    char owner[FSDP_NAME_BYTES];
    fsdp_graph_module_path(s->graph, node->module, owner);
    int tensor = schedule_tensor(s, owner, "workspace", FSDP_SPACE_DEVICE, FSDP_CATEGORY_WORKSPACE,
                                 FSDP_LIVE_SECTION, -1, node->module, scratch);
    operands[count++] = schedule_whole(s, tensor, FSDP_F32, FSDP_WRITE);
  }
  schedule_op(s, FSDP_STREAM_COMPUTE, node->kind, &attrs, -1, node->module, operands, count);
}

// How many of the weights from `first` on lie one after another in one unit's buffer, with no padding
// between: one product serves them all.
static int neighbours(const scheduler *s, const fsdp_node *node, int first) {
  int count = 1;
  for (; first + count < node->weight_count; count++) {
    int a = s->graph->values[node->weights[first + count - 1]].param;
    int b = s->graph->values[node->weights[first + count]].param;
    int64_t end = s->units->params[s->units->slot_of_param[a]].offset + s->graph->params[a].numel;
    bool adjacent = s->units->unit_of_param[a] == s->units->unit_of_param[b] &&
                    s->units->params[s->units->slot_of_param[b]].offset == end;
    if (!adjacent) break;
  }
  return count;
}

// A linear node: one product a group of neighbouring weights. Operand order: LINEAR x, weight, y;
// BACKWARD_INPUT d_y, weight, d_x; BACKWARD_WEIGHT d_y, x, d_weight.
static void schedule_linear(scheduler *s, const fsdp_node *node) {
  bool makes_weight = node->kind == FSDP_OP_LINEAR_BACKWARD_WEIGHT;
  fsdp_operand operands[3];
  operands[0] = operand_of(s, &node->operands[0]);
  fsdp_operand other = operand_of(s, &node->operands[1]);
  fsdp_op_attrs attrs = node->attrs;
  for (int i = 0; i < node->weight_count; i++)
    attrs.out_stride += s->graph->values[node->weights[i]].shape[0];
  for (int first = 0; first < node->weight_count;) {
    int count = neighbours(s, node, first);
    attrs.in_features = s->graph->values[node->weights[first]].shape[1];
    attrs.out_features = 0;
    fsdp_operand weight = {0};
    for (int i = 0; i < count; i++) {
      int value = node->weights[first + i];
      fsdp_operand range = makes_weight ? gradient_operand(s, value, FSDP_WRITE) : weight_operand(s, value);
      if (i == 0)
        weight = range;
      else
        weight.size_bytes += range.size_bytes;
      attrs.out_features += s->graph->values[value].shape[0];
    }
    operands[1] = makes_weight ? other : weight;
    operands[2] = makes_weight ? weight : other;
    schedule_op(s, FSDP_STREAM_COMPUTE, node->kind, &attrs, -1, node->module, operands, 3);
    attrs.out_offset += attrs.out_features;
    if (node->kind == FSDP_OP_LINEAR_BACKWARD_INPUT) other.access = FSDP_UPDATE; // the next group adds to d_x
    first += count;
  }
}

void schedule_node(scheduler *s, const sequence_node *entry) {
  if (entry->node.weight_count)
    schedule_linear(s, &entry->node);
  else
    schedule_plain(s, &entry->node);
}
