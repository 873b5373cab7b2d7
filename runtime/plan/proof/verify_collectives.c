#include "runtime/plan/proof/verify_internal.h"

// Whether the axis is one of those over which the ranks of a communicator's group differ.
static bool group_spans(const verifier *v, int comm, int axis) {
  return (v->program->comms[comm].axes >> axis & 1) != 0;
}

// The distance of `part` from the start of `whole`, an operand of the same tensor: on the rank with every
// coordinate 0, its stride per axis, and its least and greatest value.
typedef struct distance {
  int64_t base, stride[VERIFY_AXES_MAX], min, max;
} distance;

static distance distance_of(const verifier *v, const fsdp_operand *whole, const fsdp_operand *part) {
  distance d = {.base = part->offset.base - whole->offset.base};
  d.min = d.max = d.base;
  for (int axis = 0; axis < VERIFY_AXES_MAX; axis++) {
    d.stride[axis] = verify_stride(v, part, axis) - verify_stride(v, whole, axis);
    int64_t reach = d.stride[axis] * (verify_axis_size(v, axis) - 1);
    *(reach < 0 ? &d.min : &d.max) += reach;
  }
  return d;
}

// Whether the two can share a byte, judged by the least and the greatest distance.
static bool can_meet(const fsdp_operand *whole, const fsdp_operand *part, const distance *d) {
  return whole->tensor == part->tensor && part->size_bytes > 0 && d->min < whole->size_bytes &&
         d->max > -part->size_bytes;
}

// Whether `part` is, on every rank, the slot of the rank's place in the group (row-major over its axes).
static bool is_own_slot(const verifier *v, int comm, const distance *d, int64_t slot_bytes) {
  bool own = d->base == 0;
  for (int axis = VERIFY_AXES_MAX - 1; axis >= 0; axis--) {
    if (verify_axis_size(v, axis) == 1) continue;
    own = own && d->stride[axis] == (group_spans(v, comm, axis) ? slot_bytes : 0);
    if (group_spans(v, comm, axis)) slot_bytes *= verify_axis_size(v, axis);
  }
  return own;
}

// Whether `part`, on every rank, starts at a multiple of the slot size from the start of `whole`.
static bool starts_at_slots(const distance *d, int64_t slot_bytes) {
  bool starts = d->base % slot_bytes == 0;
  for (int axis = 0; axis < VERIFY_AXES_MAX; axis++) starts = starts && d->stride[axis] % slot_bytes == 0;
  return starts;
}

static bool reject_operands(const verifier *v, int position, int tensor, const char *what) {
  char who[VERIFY_WHO_BYTES];
  fsdp_violation found = {FSDP_VIOLATION_OPERANDS, position, -1, tensor, -1, 0, ""};
  return verify_reject(v, found, "%s (%s): %s", verify_describe(v, position, who),
                       tensor < 0 ? "no tensor" : v->program->tensors[tensor].name, what);
}

// What is wrong with the two operands of a collective, or NULL.
static const char *slots_fault(const verifier *v, const fsdp_instr *instr) {
  const fsdp_collective_row *row = fsdp_instr_collective_row(instr);
  const fsdp_operand *input = &v->program->operands[instr->first_operand], *output = input + 1;
  const bool gathers = row->output == FSDP_PART_WHOLE;
  const fsdp_operand *part = gathers ? input : output, *whole = gathers ? output : input;
  const int64_t ranks = fsdp_program_comm_size(v->program, instr),
                parts = row->input == row->output ? 1 : ranks;
  int64_t bytes;
  if (input->access != FSDP_READ || output->access != FSDP_WRITE)
    return "its first operand is read, its second written";
  if (__builtin_mul_overflow(part->size_bytes, parts, &bytes) || bytes != whole->size_bytes || bytes % ranks)
    return gathers ? "its output is not one input for each rank of the group"
                   : "its input is not one output for each rank of the group";
  distance d = distance_of(v, whole, part);
  if (!can_meet(whole, part, &d)) return NULL;
  if (row->meets == FSDP_MEETS_OWN_SLOT)
    return is_own_slot(v, instr->comm, &d, part->size_bytes)
               ? NULL
               : "its input lies in its output, but is not this rank's slot of it on every rank";
  if (row->meets == FSDP_MEETS_ANY_SLOT)
    return starts_at_slots(&d, part->size_bytes)
               ? NULL
               : "its output lies in its input, but not at the start of one of its slots on every rank";
  return "its output lies in its input";
}

static bool check_operands(const verifier *v, int position) {
  const fsdp_program *program = v->program;
  const fsdp_instr *instr = &program->instrs[position];
  const fsdp_operand *operands = &program->operands[instr->first_operand];
  const bool copies = !fsdp_instr_is_collective(instr);
  const bool in_place = !copies && fsdp_instr_collective_row(instr)->meets == FSDP_MEETS_SAME;
  if (instr->operand_count != (in_place ? 1 : 2))
    return reject_operands(v, position, -1, "it lacks the operands that it requires");
  for (int o = 0; o < instr->operand_count; o++) {
    const fsdp_operand *operand = &operands[o];
    bool on_host = copies && (instr->kind == FSDP_INSTR_H2D) == (o == 0);
    if (instr->kind == FSDP_INSTR_D2H && o == 0) continue; // a snapshot's may lie on the host too
    if ((program->tensors[operand->tensor].space == FSDP_SPACE_HOST) != on_host)
      return reject_operands(v, position, operand->tensor, "it lies in the wrong memory");
    if (operand->dtype != operands[0].dtype || operand->size_bytes % fsdp_dtype_bytes(operand->dtype))
      return reject_operands(v, position, operand->tensor, "it is not whole elements of one dtype");
  }
  if (in_place && operands[0].access != FSDP_UPDATE)
    return reject_operands(v, position, operands[0].tensor, "its operand is read and written");
  if (copies && (operands[0].access != FSDP_READ || operands[1].access != FSDP_WRITE ||
                 operands[0].size_bytes != operands[1].size_bytes))
    return reject_operands(v, position, operands[1].tensor, "source and target of a copy differ in size");
  const char *fault = copies || in_place ? NULL : slots_fault(v, instr);
  return fault ? reject_operands(v, position, operands[1].tensor, fault) : true;
}

// A communicator belongs to one stream: in the order of that stream its ranks meet.
static bool check_communicator(const verifier *v, int position) {
  const fsdp_program *program = v->program;
  const fsdp_instr *instr = &program->instrs[position];
  char who[VERIFY_WHO_BYTES];
  fsdp_violation found = {FSDP_VIOLATION_COMMUNICATOR, position, -1, -1, -1, 0, ""};
  if (instr->comm < 0 || instr->comm >= program->comm_count)
    return verify_reject(v, found, "%s names communicator %d of %d", verify_describe(v, position, who),
                         instr->comm, program->comm_count);
  if (program->comms[instr->comm].axes >> program->mesh.count)
    return verify_reject(v, found, "%s runs over an axis that the mesh of %d does not have",
                         verify_describe(v, position, who), program->mesh.count);
  if (program->comms[instr->comm].stream == instr->stream) return true;
  return verify_reject(v, found,
                       "%s uses a communicator of stream %s from two streams: ranks could meet in different "
                       "orders",
                       verify_describe(v, position, who),
                       fsdp_stream_name(program->comms[instr->comm].stream));
}

bool verify_collectives(const verifier *v) {
  const fsdp_program *program = v->program;
  for (int i = 0; i < program->instr_count; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    const bool meets = fsdp_instr_is_collective(instr);
    if (!meets && instr->kind != FSDP_INSTR_H2D && instr->kind != FSDP_INSTR_D2H) continue;
    if (meets && !check_communicator(v, i)) return false;
    if (!check_operands(v, i)) return false;
  }
  return true;
}
