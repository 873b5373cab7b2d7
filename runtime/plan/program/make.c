#include "runtime/plan/program/make.h"

#include "runtime/base/check.h"

#include <string.h>

int make_tensor(step_builder *s, const char *owner, const char *what, fsdp_space space,
                fsdp_category category, fsdp_lifetime lifetime, int unit, int module, int64_t bytes) {
  fsdp_tensor tensor = {.space = space,
                        .category = category,
                        .lifetime = lifetime,
                        .unit = unit,
                        .module = module,
                        .bytes = bytes};
  // A search makes millions of names: snprintf takes several times as long.
  const size_t owner_bytes = strlen(owner), dot_bytes = owner[0] ? 1 : 0, what_bytes = strlen(what);
  FSDP_CHECK(owner_bytes + dot_bytes + what_bytes < FSDP_NAME_BYTES, "tensor name '%s.%s' is too long", owner,
             what);
  memcpy(tensor.name, owner, owner_bytes);
  memcpy(tensor.name + owner_bytes, ".", dot_bytes);
  memcpy(tensor.name + owner_bytes + dot_bytes, what, what_bytes);
  return fsdp_program_tensor(s->program, &tensor);
}

int make_unit_tensor(step_builder *s, int u, const char *what, fsdp_space space, fsdp_category category,
                     fsdp_lifetime lifetime, int64_t numel, fsdp_dtype dtype) {
  const fsdp_unit *unit = &s->units->units[u];
  return make_tensor(s, unit->path, what, space, category, lifetime, u, unit->module,
                     numel * fsdp_dtype_bytes(dtype));
}

int make_scalars(step_builder *s, const char *what, fsdp_space space, fsdp_lifetime lifetime, int64_t count) {
  return make_tensor(s, "step", what, space, FSDP_CATEGORY_INPUTS, lifetime, -1, -1, 4 * count);
}

fsdp_operand make_whole(const step_builder *s, int tensor, fsdp_dtype dtype, fsdp_access access) {
  return (fsdp_operand){
      .tensor = tensor, .dtype = dtype, .access = access, .size_bytes = s->program->tensors[tensor].bytes};
}

fsdp_operand make_own_slot(const step_builder *s, int u, int tensor, fsdp_dtype dtype, fsdp_access access) {
  const fsdp_unit *unit = &s->units->units[u];
  int64_t bytes = unit->shard_numel * fsdp_dtype_bytes(dtype);
  return (fsdp_operand){.tensor = tensor,
                        .dtype = dtype,
                        .access = access,
                        .offset = fsdp_affine_of_place(&s->program->mesh, unit->shard_axes, 0, bytes),
                        .size_bytes = bytes};
}

fsdp_operand make_slice(const step_builder *s, int u, int tensor, fsdp_dtype dtype, fsdp_access access,
                        int64_t numel) {
  const fsdp_unit *unit = &s->units->units[u];
  int64_t width = fsdp_dtype_bytes(dtype);
  fsdp_operand operand = make_whole(s, tensor, dtype, access);
  operand.offset =
      fsdp_affine_of_place(&s->program->mesh, unit->replica_axes, 0, fsdp_unit_slice(unit) * width);
  operand.size_bytes = numel * width;
  return operand;
}

static int make_node(step_builder *s, const fsdp_instr *instr, const fsdp_operand *operands,
                     int operand_count) {
  FSDP_CHECK(operand_count <= FSDP_OP_MAX_OPERANDS, "%d operands", operand_count);
  const int index = fsdp_nodes_add(&s->nodes);
  fsdp_list_node *node = &s->nodes.nodes[index];
  node->operand_count = operand_count;
  node->origin = node->block = -1;
  node->is_backward = node->is_bounded = false;
  node->instr = *instr;
  node->instr.policy = -1;
  if (operand_count) memcpy(node->operands, operands, (size_t)operand_count * sizeof *operands);
  return index;
}

int make_op(step_builder *s, fsdp_stream stream, fsdp_op_kind op, const fsdp_op_attrs *attrs, int unit,
            const fsdp_operand *operands, int operand_count) {
  fsdp_instr instr = {.kind = FSDP_INSTR_OP, .stream = stream, .op = op, .unit = unit, .module = -1};
  if (attrs) instr.attrs = *attrs;
  return make_node(s, &instr, operands, operand_count);
}

int make_move(step_builder *s, fsdp_stream stream, int unit, fsdp_operand from, fsdp_operand to) {
  from.access = FSDP_READ;
  return make_op(s, stream, fsdp_op_move(to.access), NULL, unit, (fsdp_operand[]){from, to}, 2);
}

int make_copy(step_builder *s, fsdp_instr_kind kind, int unit, fsdp_operand from, fsdp_operand to) {
  fsdp_instr instr = {.kind = kind,
                      .stream = kind == FSDP_INSTR_H2D ? FSDP_STREAM_H2D : FSDP_STREAM_D2H,
                      .unit = unit,
                      .module = -1};
  from.access = FSDP_READ;
  to.access = FSDP_WRITE;
  return make_node(s, &instr, (fsdp_operand[]){from, to}, 2);
}

int make_copy_whole(step_builder *s, fsdp_instr_kind kind, int from, int to, fsdp_dtype dtype) {
  return make_copy(s, kind, -1, make_whole(s, from, dtype, FSDP_READ), make_whole(s, to, dtype, FSDP_WRITE));
}

int make_copy_saved(step_builder *s, fsdp_instr_kind kind, int from, int to, fsdp_dtype dtype) {
  int node = make_copy_whole(s, kind, from, to, dtype);
  s->nodes.nodes[node].instr.stream = kind == FSDP_INSTR_H2D ? FSDP_STREAM_LOAD : FSDP_STREAM_SAVE;
  return node;
}

int make_collective(step_builder *s, fsdp_instr_kind kind, fsdp_axis_set axes, fsdp_stream stream, int unit,
                    const fsdp_operand *operands) {
  FSDP_CHECK(fsdp_stream_communicates(stream), "a collective on stream %s", fsdp_stream_name(stream));
  fsdp_instr instr = {.kind = kind,
                      .stream = stream,
                      .comm = fsdp_program_comm_add(s->program, axes, stream),
                      .unit = unit,
                      .module = -1};
  const int count = fsdp_instr_collective_row(&instr)->meets == FSDP_MEETS_SAME ? 1 : 2;
  fsdp_operand set[2];
  for (int o = 0; o < count; o++) {
    set[o] = operands[o];
    set[o].access = count == 1 ? FSDP_UPDATE : o == 0 ? FSDP_READ : FSDP_WRITE;
  }
  return make_node(s, &instr, set, count);
}

int make_host_call(step_builder *s, fsdp_instr_kind kind, const fsdp_operand *operands, int operand_count) {
  fsdp_instr instr = {.kind = kind, .stream = FSDP_STREAM_HOST, .unit = -1, .module = -1};
  return make_node(s, &instr, operands, operand_count);
}

void make_sum(step_builder *s, int tensor, fsdp_axis_set axes) {
  if (!axes) return;
  fsdp_operand operand = make_whole(s, tensor, FSDP_F32, FSDP_UPDATE);
  make_collective(s, FSDP_INSTR_ALL_REDUCE, axes, FSDP_STREAM_REDUCE, -1, &operand);
}
