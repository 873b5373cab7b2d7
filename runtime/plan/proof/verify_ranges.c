#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/proof/boundary.h"
#include "runtime/plan/proof/tag_tree.h"
#include "runtime/plan/proof/verify_internal.h"

#include <stdarg.h>

// ---- Messages

const char *verify_describe(const verifier *v, int position, char out[VERIFY_WHO_BYTES]) {
  const fsdp_instr *instr = &v->program->instrs[position];
  snprintf(out, VERIFY_WHO_BYTES, "%s on stream %s at %d", fsdp_instr_name(instr),
           fsdp_stream_name(instr->stream), position);
  return out;
}

bool verify_reject(const verifier *v, fsdp_violation found, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  *v->violation = found;
  vsnprintf(v->violation->message, sizeof v->violation->message, format, arguments);
  va_end(arguments);
  return false;
}

// ---- Where operands lie

int verify_axis_size(const verifier *v, int axis) {
  return axis < v->program->mesh.count ? v->program->mesh.axes[axis].size : 1;
}

int64_t verify_stride(const verifier *v, const fsdp_operand *operand, int axis) {
  return verify_axis_size(v, axis) == 1 ? 0 : operand->offset.stride[axis];
}

verify_range verify_tensor_range(const verifier *v, int tensor) {
  const fsdp_tensor *t = &v->program->tensors[tensor];
  int64_t begin = v->space_base[t->space] + t->address;
  return (verify_range){begin, begin + t->bytes};
}

verify_range verify_operand_range(const verifier *v, const fsdp_operand *operand, const verify_place *place) {
  int64_t begin = verify_tensor_range(v, operand->tensor).begin + operand->offset.base;
  for (int axis = 0; axis < VERIFY_AXES_MAX; axis++)
    begin += verify_stride(v, operand, axis) * place->coordinate[axis];
  return (verify_range){begin, begin + operand->size_bytes};
}

verify_range verify_operand_hull(const verifier *v, const fsdp_operand *operand) {
  verify_range hull = verify_operand_range(v, operand, &(verify_place){{0}});
  for (int axis = 0; axis < VERIFY_AXES_MAX; axis++) {
    int64_t reach = verify_stride(v, operand, axis) * (verify_axis_size(v, axis) - 1);
    hull.begin += fsdp_min_i64(reach, 0);
    hull.end += fsdp_max_i64(reach, 0);
  }
  return hull;
}

// ---- Operands in tensors, tensors in arenas

static bool check_operand(const verifier *v, int position, const fsdp_operand *operand) {
  const fsdp_program *program = v->program;
  char who[VERIFY_WHO_BYTES];
  fsdp_violation found = {FSDP_VIOLATION_OUT_OF_RANGE, position, -1, operand->tensor, -1, 0, ""};
  if (operand->tensor < 0 || operand->tensor >= program->tensor_count)
    return verify_reject(v, found, "%s names tensor %d of %d", verify_describe(v, position, who),
                         operand->tensor, program->tensor_count);
  const fsdp_tensor *tensor = &program->tensors[operand->tensor];
  verify_range whole = verify_tensor_range(v, operand->tensor), hull = verify_operand_hull(v, operand);
  found.address = tensor->address + (hull.begin - whole.begin);
  if (operand->size_bytes < 0 || hull.begin < whole.begin || hull.end > whole.end)
    return verify_reject(v, found, "%s accesses bytes %lld to %lld of %s, which has %lld",
                         verify_describe(v, position, who), (long long)(hull.begin - whole.begin),
                         (long long)(hull.end - whole.begin), tensor->name, (long long)tensor->bytes);
  if (!fsdp_instr_is_poison(&program->instrs[position]) &&
      (position < tensor->begin || position > tensor->end))
    return verify_reject(v, found, "%s accesses %s, which lives from %d to %d",
                         verify_describe(v, position, who), tensor->name, tensor->begin, tensor->end);
  return true;
}

static bool check_instr(const verifier *v, int position) {
  const fsdp_program *program = v->program;
  const fsdp_instr *instr = &program->instrs[position];
  for (int o = 0; o < instr->operand_count; o++)
    if (!check_operand(v, position, &program->operands[instr->first_operand + o])) return false;
  for (int w = 0; w < instr->wait_count; w++) {
    int awaited = program->waits[instr->first_wait + w].position;
    fsdp_violation found = {FSDP_VIOLATION_OUT_OF_RANGE, position, awaited, -1, -1, 0, ""};
    if (awaited < 0 || awaited >= program->instr_count)
      return verify_reject(v, found, "instruction %d waits for %d, which does not exist", position, awaited);
  }
  return true;
}

bool verify_ranges(const verifier *v) {
  const fsdp_program *program = v->program;
  for (int t = 0; t < program->tensor_count; t++) {
    const fsdp_tensor *tensor = &program->tensors[t];
    if (tensor->address >= 0 && tensor->bytes <= program->arena_bytes[tensor->space] - tensor->address)
      continue;
    fsdp_violation found = {FSDP_VIOLATION_OUT_OF_RANGE, -1, -1, t, -1, tensor->address, ""};
    return verify_reject(v, found, "%s lies at %lld with %lld bytes, the arena has %lld", tensor->name,
                         (long long)tensor->address, (long long)tensor->bytes,
                         (long long)program->arena_bytes[tensor->space]);
  }
  for (int i = 0; i < program->instr_count; i++)
    if (!check_instr(v, i)) return false;
  return true;
}

// ---- Live tensors apart

static fsdp_tag_tree create_owners(const verifier *v) {
  int count = 2 * v->program->tensor_count;
  int64_t *cuts = fsdp_alloc(((size_t)count + 1) * sizeof *cuts);
  for (int t = 0; t < v->program->tensor_count; t++) {
    verify_range range = verify_tensor_range(v, t);
    cuts[2 * t] = range.begin;
    cuts[2 * t + 1] = range.end;
  }
  cuts[count] = 0;
  return fsdp_tag_tree_create(fsdp_cuts_create(cuts, count + 1));
}

// Makes `tensor`, which begins at `position`, the owner of its bytes.
static bool take_bytes(const verifier *v, fsdp_tag_tree *owners, int position, int tensor) {
  const fsdp_tensor *t = &v->program->tensors[tensor];
  verify_range range = verify_tensor_range(v, tensor);
  int64_t where;
  int other = FSDP_NOBODY;
  bool is_free = fsdp_tag_tree_all(owners, range.begin, range.end, FSDP_NOBODY, &where, &other);
  if (!is_free) {
    where -= v->space_base[t->space];
    fsdp_violation found = {FSDP_VIOLATION_OVERLAP, position, -1, tensor, other, where, ""};
    return verify_reject(v, found, "%s and %s live at the same time at %s address %lld", t->name,
                         v->program->tensors[other].name, t->space == FSDP_SPACE_HOST ? "host" : "device",
                         (long long)where);
  }
  fsdp_tag_tree_set(owners, range.begin, range.end, tensor);
  return true;
}

// A sweep over the list: every byte belongs to at most one live tensor.
bool verify_overlap(const verifier *v) {
  const fsdp_program *program = v->program;
  fsdp_tag_tree owners = create_owners(v);
  fsdp_boundary begins = fsdp_boundary_create(program, false), ends = fsdp_boundary_create(program, true);
  bool sound = true;
  for (int i = 0; i < program->instr_count && sound; i++) {
    for (int t = begins.first[i]; t >= 0 && sound; t = begins.next[t]) sound = take_bytes(v, &owners, i, t);
    for (int t = ends.first[i]; t >= 0 && sound; t = ends.next[t]) {
      verify_range range = verify_tensor_range(v, t);
      fsdp_tag_tree_set(&owners, range.begin, range.end, FSDP_NOBODY);
    }
  }
  fsdp_boundary_destroy(&begins);
  fsdp_boundary_destroy(&ends);
  fsdp_tag_tree_destroy(&owners);
  return sound;
}
