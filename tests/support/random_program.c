#include "tests/support/random_program.h"

#include "runtime/base/check.h"
#include "runtime/base/random.h"

#include <string.h>

int random_int(random_source *random, int low, int high) {
  uint32_t words[4];
  fsdp_random_words(random->seed, 0, random->next++, words);
  return low + (int)(words[0] % (uint32_t)(high - low + 1));
}

// Tensors that hold data at the generator's position.
typedef struct generator {
  random_source *random;
  fsdp_program *program;
  int filled[512], filled_count;
  fsdp_axis_set axes[512]; // by tensor: those over which it has slots
  int made;
} generator;

// Slots of a tensor: one for each rank of a group over its axes.
static int slot_count(const generator *g, int tensor) {
  return fsdp_mesh_group_size(&g->program->mesh, g->axes[tensor]);
}

// Some of the axes of more than one rank; the one that has most is preferred.
static fsdp_axis_set some_axes(generator *g) {
  fsdp_axis_set all = fsdp_mesh_all_axes(&g->program->mesh), most = 0;
  for (int a = 0; a < g->program->mesh.count; a++)
    if (all >> a & 1 &&
        (!most || g->program->mesh.axes[a].size > fsdp_mesh_group_size(&g->program->mesh, most)))
      most = 1u << a;
  return random_int(g->random, 0, 1)
             ? most
             : all & (fsdp_axis_set)random_int(g->random, 0, (1 << FSDP_MESH_AXES_MAX) - 1);
}

static int make_tensor(generator *g, fsdp_lifetime lifetime) {
  fsdp_axis_set axes = some_axes(g);
  int slots = fsdp_mesh_group_size(&g->program->mesh, axes),
      words = 512 / 4 / slots; // the oracle looks at all
  int slot_bytes = 4 * random_int(g->random, 1, random_int(g->random, 0, 3) == 0 && words > 8 ? 8 : words);
  fsdp_tensor tensor = {.space = random_int(g->random, 0, 3) == 0 ? FSDP_SPACE_HOST : FSDP_SPACE_DEVICE,
                        .category = (fsdp_category)random_int(g->random, 0, FSDP_CATEGORY_COUNT - 1),
                        .lifetime = lifetime,
                        .unit = random_int(g->random, -1, 3),
                        .module = random_int(g->random, -1, 5),
                        .bytes = (int64_t)slot_bytes * slots};
  snprintf(tensor.name, sizeof tensor.name, "t%d", g->made++);
  int made = fsdp_program_tensor(g->program, &tensor);
  g->axes[made] = axes;
  return made;
}

static fsdp_operand whole_of(const generator *g, int tensor, fsdp_access access) {
  return (fsdp_operand){
      .tensor = tensor, .dtype = FSDP_F32, .access = access, .size_bytes = g->program->tensors[tensor].bytes};
}

static fsdp_operand slot_of(const generator *g, int tensor, fsdp_access access) {
  fsdp_operand operand = whole_of(g, tensor, access);
  operand.size_bytes /= slot_count(g, tensor);
  operand.offset = fsdp_affine_of_place(&g->program->mesh, g->axes[tensor], 0, operand.size_bytes);
  return operand;
}

static fsdp_operand some_of(generator *g, int tensor, fsdp_access access) {
  int shape = random_int(g->random, 0, 5);
  fsdp_operand operand = shape % 2 == 0 ? slot_of(g, tensor, access) : whole_of(g, tensor, access);
  // Without a stride it is the same slot all along that axis.
  if (shape == 0) operand.offset.stride[random_int(g->random, 0, FSDP_MESH_AXES_MAX - 1)] = 0;
  if (shape <= 2) { // a piece of it
    int words = (int)(operand.size_bytes / 4), first = random_int(g->random, 0, words - 1);
    operand.offset.base += 4 * first;
    operand.size_bytes = 4 * random_int(g->random, 1, words - first);
  }
  return operand;
}

// A collective or a copy of two operands.
static void emit_move(generator *g, fsdp_instr_kind kind, fsdp_stream stream, fsdp_axis_set axes,
                      const fsdp_operand *operands, int count) {
  fsdp_instr instr = {.kind = kind, .stream = stream, .unit = -1, .module = -1, .policy = -1};
  if (fsdp_instr_is_collective(&instr)) instr.comm = fsdp_program_comm_add(g->program, axes, stream);
  fsdp_program_instr(g->program, &instr, operands, count);
}

static void emit(generator *g, fsdp_operand *operands, int count) {
  int policy = g->program->instr_count > 0 && random_int(g->random, 0, 4) == 0
                   ? random_int(g->random, 0, g->program->instr_count - 1)
                   : -1;
  fsdp_instr instr = {.kind = FSDP_INSTR_OP,
                      .stream = (fsdp_stream)random_int(g->random, 0, FSDP_STREAM_COUNT - 1),
                      .op = FSDP_OP_ADD,
                      .unit = random_int(g->random, -1, 3),
                      .module = -1,
                      .policy = policy};
  // Reads of what holds data, never of a tensor that is already an operand.
  for (int i = random_int(g->random, 0, 3); i > 0 && g->filled_count > 0; i--) {
    int tensor = g->filled[random_int(g->random, 0, g->filled_count - 1)];
    bool present = false;
    for (int o = 0; o < count; o++) present = present || operands[o].tensor == tensor;
    if (!present)
      operands[count++] = some_of(g, tensor, random_int(g->random, 0, 4) == 0 ? FSDP_UPDATE : FSDP_READ);
  }
  fsdp_program_instr(g->program, &instr, operands, count);
}

// Gives every byte of `tensor` data, by one instruction or several.
static void fill(generator *g, int tensor) {
  fsdp_operand operands[8];
  bool on_device = g->program->tensors[tensor].space == FSDP_SPACE_DEVICE;
  switch (random_int(g->random, on_device ? 0 : 1, 5)) {
  case 0: // own slot, then the whole from everyone's
    operands[0] = slot_of(g, tensor, FSDP_WRITE);
    if (random_int(g->random, 0, 1) && operands[0].size_bytes > 4) { // in two pieces
      int64_t bytes = operands[0].size_bytes;
      operands[0].size_bytes = 4 * (int64_t)random_int(g->random, 1, (int)(bytes / 4) - 1);
      fsdp_operand rest = operands[0];
      rest.offset.base += rest.size_bytes;
      rest.size_bytes = bytes - rest.size_bytes;
      emit(g, operands, 1);
      operands[0] = rest;
    }
    emit(g, operands, 1);
    operands[0] = slot_of(g, tensor, FSDP_READ);
    operands[1] = whole_of(g, tensor, FSDP_WRITE);
    emit_move(g, FSDP_INSTR_ALL_GATHER, FSDP_STREAM_GATHER, g->axes[tensor], operands, 2);
    break;
  case 1: // slot by slot, in any order
    for (int i = 0, n = slot_count(g, tensor), first = random_int(g->random, 0, n - 1); i < n; i++) {
      operands[0] = slot_of(g, tensor, FSDP_WRITE);
      operands[0].offset = (fsdp_affine){0};
      operands[0].offset.base = (i + first) % n * operands[0].size_bytes;
      emit(g, operands, 1);
    }
    break;
  case 2: // piece by piece
    for (int64_t begin = 0, bytes = g->program->tensors[tensor].bytes; begin < bytes;) {
      operands[0] = whole_of(g, tensor, FSDP_WRITE);
      operands[0].offset.base = begin;
      operands[0].size_bytes = 4 * (int64_t)random_int(g->random, 1, 64);
      if (begin + operands[0].size_bytes > bytes) operands[0].size_bytes = bytes - begin;
      begin += operands[0].size_bytes;
      emit(g, operands, 1);
    }
    break;
  default:
    operands[0] = whole_of(g, tensor, FSDP_WRITE);
    emit(g, operands, 1);
  }
  g->filled[g->filled_count++] = tensor;
}

// A filled tensor of the device, or -1.
static int filled_on_device(generator *g) {
  int tensor = g->filled_count ? g->filled[random_int(g->random, 0, g->filled_count - 1)] : -1;
  return tensor >= 0 && g->program->tensors[tensor].space == FSDP_SPACE_DEVICE ? tensor : -1;
}

// A reduction of a filled tensor: into its own slot, into any other, or summed everywhere.
static void reduce(generator *g) {
  int tensor = filled_on_device(g);
  if (tensor < 0) return;
  fsdp_operand operands[2] = {whole_of(g, tensor, FSDP_UPDATE)};
  if (random_int(g->random, 0, 2) == 0) {
    emit_move(g, FSDP_INSTR_ALL_REDUCE, FSDP_STREAM_REDUCE, some_axes(g), operands, 1);
    return;
  }
  operands[0].access = FSDP_READ;
  operands[1] = slot_of(g, tensor, FSDP_WRITE);
  if (random_int(g->random, 0, 1)) {
    operands[1].offset = (fsdp_affine){0};
    operands[1].offset.base = operands[1].size_bytes * random_int(g->random, 0, slot_count(g, tensor) - 1);
  }
  emit_move(g, FSDP_INSTR_REDUCE_SCATTER, FSDP_STREAM_REDUCE, g->axes[tensor], operands, 2);
}

// Copies a filled tensor's own slot over another's in the other memory, as far as both reach.
static void copy_over(generator *g) {
  if (g->filled_count == 0) return;
  int from = g->filled[random_int(g->random, 0, g->filled_count - 1)];
  int to = g->filled[random_int(g->random, 0, g->filled_count - 1)];
  fsdp_operand operands[2] = {slot_of(g, from, FSDP_READ), slot_of(g, to, FSDP_WRITE)};
  if (g->program->tensors[from].space == g->program->tensors[to].space) return;
  if (operands[0].size_bytes < operands[1].size_bytes) operands[1].size_bytes = operands[0].size_bytes;
  operands[0].size_bytes = operands[1].size_bytes;
  bool down = g->program->tensors[to].space == FSDP_SPACE_HOST;
  emit_move(g, down ? FSDP_INSTR_D2H : FSDP_INSTR_H2D, down ? FSDP_STREAM_D2H : FSDP_STREAM_H2D, 0, operands,
            2);
}

static void forget_filled(generator *g, int index) {
  g->filled[index] = g->filled[--g->filled_count];
}

static void generate_section(generator *g, fsdp_section_kind kind) {
  bool opens_step = kind == FSDP_SECTION_ONLY || kind == FSDP_SECTION_FIRST;
  fsdp_operand operands[8];
  fsdp_program_begin_section(g->program, kind);
  // A tensor of the step lives through every run of the middle section, so it may not end there.
  for (int i = 0; kind == FSDP_SECTION_UPDATE && i < g->filled_count; i++) {
    if (g->program->tensors[g->filled[i]].lifetime != FSDP_LIVE_STEP) continue;
    operands[0] = whole_of(g, g->filled[i], FSDP_READ);
    emit(g, operands, 1);
  }
  for (int i = random_int(g->random, 3, 14); i > 0; i--) {
    int choice = random_int(g->random, 0, 11);
    if (choice < 4) {
      fill(g, make_tensor(g, opens_step && choice == 0 ? FSDP_LIVE_STEP : FSDP_LIVE_SECTION));
    } else if (choice == 4 && g->filled_count > 2) {
      int index = random_int(g->random, 0, g->filled_count - 1);
      fsdp_lifetime lifetime = g->program->tensors[g->filled[index]].lifetime;
      if (lifetime == FSDP_LIVE_SECTION) forget_filled(g, index);
    } else if (choice == 10) {
      reduce(g);
    } else if (choice == 11) {
      copy_over(g);
    } else {
      emit(g, operands, 0);
    }
  }
  fsdp_program_end_section(g->program);
  for (int i = g->filled_count - 1; i >= 0; i--) {
    fsdp_lifetime lifetime = g->program->tensors[g->filled[i]].lifetime;
    bool step_ends = kind == FSDP_SECTION_UPDATE;
    if (lifetime == FSDP_LIVE_SECTION || (lifetime == FSDP_LIVE_STEP && step_ends)) forget_filled(g, i);
  }
}

// Three axes in any order: all their sets on two streams are as many communicators as a program may have.
static fsdp_mesh random_mesh(random_source *random, int ranks_max) {
  static const char *const names[] = {FSDP_AXIS_DATA, FSDP_AXIS_FSDP, FSDP_AXIS_TENSOR, "other"};
  fsdp_mesh mesh = {0};
  int left = random_int(random, 0, 1) ? ranks_max / 4 : ranks_max, first = random_int(random, 0, 3);
  for (int i = 0; i < 3; i++) {
    int size = random_int(random, 0, 2) == 0 ? 1 : random_int(random, 1, left);
    left /= size;
    fsdp_mesh_add(&mesh, names[(first + i) % 4], size);
  }
  return mesh;
}

fsdp_program *random_program(random_source *random, int ranks_max) {
  generator g = {.random = random, .program = fsdp_program_create()};
  g.program->mesh = random_mesh(random, ranks_max);
  g.program->micro_batches = random_int(random, 1, 5);
  for (int i = random_int(random, 0, 4); i > 0; i--)
    g.filled[g.filled_count++] = make_tensor(&g, FSDP_LIVE_ALWAYS);
  if (g.program->micro_batches == 1) generate_section(&g, FSDP_SECTION_ONLY);
  if (g.program->micro_batches > 1) generate_section(&g, FSDP_SECTION_FIRST);
  if (g.program->micro_batches > 2) generate_section(&g, FSDP_SECTION_MIDDLE);
  if (g.program->micro_batches > 1) generate_section(&g, FSDP_SECTION_LAST);
  generate_section(&g, FSDP_SECTION_UPDATE);
  int beside = 0; // at most two, since the oracle tries every sequence of them
  for (int kind = FSDP_SECTION_EVALUATION; kind < FSDP_SECTION_KIND_COUNT && beside < 2; kind++) {
    if (random_int(random, 0, 2) != 0) continue;
    generate_section(&g, (fsdp_section_kind)kind);
    beside++;
  }
  fsdp_program_lifetimes(g.program);
  return g.program;
}

static void *copy_array(const void *array, int count, size_t item_bytes) {
  void *copy = fsdp_alloc((size_t)count * item_bytes);
  if (count > 0) memcpy(copy, array, (size_t)count * item_bytes);
  return copy;
}

fsdp_program *copy_program(const fsdp_program *program) {
  fsdp_program *copy = fsdp_program_create();
  *copy = *program;
  copy->instrs = copy_array(program->instrs, program->instr_count, sizeof *program->instrs);
  copy->operands = copy_array(program->operands, program->operand_count, sizeof *program->operands);
  copy->waits = copy_array(program->waits, program->wait_count, sizeof *program->waits);
  copy->tensors = copy_array(program->tensors, program->tensor_count, sizeof *program->tensors);
  copy->instr_capacity = program->instr_count;
  copy->operand_capacity = program->operand_count;
  copy->wait_capacity = program->wait_count;
  copy->tensor_capacity = program->tensor_count;
  return copy;
}
