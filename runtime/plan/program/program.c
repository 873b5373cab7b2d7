#include "runtime/plan/program/program.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <string.h>
#include <xxhash.h>

fsdp_program *fsdp_program_create(void) {
  fsdp_program *program = fsdp_alloc_zeroed(1, sizeof *program);
  program->micro_batches = 1;
  program->gemm_workspace = program->logits = -1;
  program->mesh = fsdp_mesh_of(1, 1);
  return program;
}

void fsdp_program_destroy(fsdp_program *program) {
  if (!program) return;
  free(program->instrs);
  free(program->operands);
  free(program->waits);
  free(program->tensors);
  free(program);
}

// ---- Building

void fsdp_program_reserve(fsdp_program *program, int instrs) {
  program->tensors = fsdp_grow(program->tensors, instrs, &program->tensor_capacity, sizeof *program->tensors);
  program->instrs = fsdp_grow(program->instrs, instrs, &program->instr_capacity, sizeof *program->instrs);
  program->operands =
      fsdp_grow(program->operands, 4 * instrs, &program->operand_capacity, sizeof *program->operands);
}

int fsdp_program_tensor(fsdp_program *program, const fsdp_tensor *tensor) {
  FSDP_CHECK(tensor->bytes >= 0, "tensor %s of %lld bytes", tensor->name, (long long)tensor->bytes);
  int index = program->tensor_count;
  program->tensors =
      fsdp_grow(program->tensors, index + 1, &program->tensor_capacity, sizeof *program->tensors);
  program->tensors[index] = *tensor;
  program->tensors[index].begin = 0;
  program->tensors[index].end = -1;
  program->tensors[index].address = 0;
  program->tensor_count++;
  return index;
}

int fsdp_program_instr(fsdp_program *program, const fsdp_instr *instr, const fsdp_operand *operands,
                       int operand_count) {
  int index = program->instr_count, first = program->operand_count;
  FSDP_CHECK(program->section_count > 0 && program->sections[program->section_count - 1].end < 0,
             "instruction %d lies in no section", index);
  program->instrs = fsdp_grow(program->instrs, index + 1, &program->instr_capacity, sizeof *program->instrs);
  program->operands = fsdp_grow(program->operands, first + operand_count, &program->operand_capacity,
                                sizeof *program->operands);
  for (int i = 0; i < operand_count; i++) {
    FSDP_CHECK(operands[i].tensor >= 0 && operands[i].tensor < program->tensor_count,
               "operand %d of instruction %d names tensor %d of %d", i, index, operands[i].tensor,
               program->tensor_count);
    program->operands[first + i] = operands[i];
  }
  program->operand_count += operand_count;
  program->instrs[index] = *instr;
  program->instrs[index].first_operand = first;
  program->instrs[index].operand_count = operand_count;
  program->instrs[index].first_wait = 0;
  program->instrs[index].wait_count = 0;
  program->instr_count++;
  return index;
}

int fsdp_program_comm_add(fsdp_program *program, fsdp_axis_set axes, fsdp_stream stream) {
  for (int c = 0; c < program->comm_count; c++)
    if (program->comms[c].axes == axes && program->comms[c].stream == stream) return c;
  FSDP_CHECK(program->comm_count < FSDP_PROGRAM_COMMS_MAX, "more than %d communicators",
             FSDP_PROGRAM_COMMS_MAX);
  program->comms[program->comm_count] = (fsdp_program_comm){axes, stream};
  return program->comm_count++;
}

int fsdp_program_comm_size(const fsdp_program *program, const fsdp_instr *instr) {
  FSDP_CHECK(instr->comm >= 0 && instr->comm < program->comm_count, "communicator %d of %d", instr->comm,
             program->comm_count);
  return fsdp_mesh_group_size(&program->mesh, program->comms[instr->comm].axes);
}

int64_t fsdp_program_whole_bytes(const fsdp_program *program, const fsdp_instr *instr) {
  const fsdp_operand *operands = &program->operands[instr->first_operand];
  const bool is_input = fsdp_instr_collective_row(instr)->input == FSDP_PART_WHOLE;
  return operands[is_input ? 0 : 1].size_bytes;
}

void fsdp_program_begin_section(fsdp_program *program, fsdp_section_kind kind) {
  int index = program->section_count;
  FSDP_CHECK(index < FSDP_MAX_SECTIONS, "more than %d sections", FSDP_MAX_SECTIONS);
  FSDP_CHECK(index == 0 || program->sections[index - 1].end >= 0, "section %s lies inside section %s",
             fsdp_section_name(kind), fsdp_section_name(program->sections[index - 1].kind));
  // The order of the kinds is the order of issue; lifetimes across sections rely on it.
  FSDP_CHECK(index == 0 || program->sections[index - 1].kind < kind, "section %s follows section %s",
             fsdp_section_name(kind), fsdp_section_name(program->sections[index - 1].kind));
  program->sections[index] = (fsdp_section){.kind = kind, .begin = program->instr_count, .end = -1};
  program->section_count++;
}

void fsdp_program_end_section(fsdp_program *program) {
  FSDP_CHECK(program->section_count > 0 && program->sections[program->section_count - 1].end < 0,
             "no section is open");
  program->sections[program->section_count - 1].end = program->instr_count;
}

void fsdp_program_set_waits(fsdp_program *program, const fsdp_wait *waits, const int *counts) {
  int total = 0;
  for (int i = 0; i < program->instr_count; i++) {
    program->instrs[i].first_wait = total;
    program->instrs[i].wait_count = counts[i];
    total += counts[i];
  }
  program->waits = fsdp_grow(program->waits, total, &program->wait_capacity, sizeof *program->waits);
  program->wait_count = total;
  if (total > 0) memcpy(program->waits, waits, (size_t)total * sizeof *waits);
}

void fsdp_program_lifetimes(fsdp_program *program) {
  for (int t = 0; t < program->tensor_count; t++) {
    bool always = program->tensors[t].lifetime == FSDP_LIVE_ALWAYS;
    program->tensors[t].begin = 0;
    program->tensors[t].end = always ? program->instr_count - 1 : -1;
  }
  for (int i = 0; i < program->instr_count; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    if (fsdp_instr_is_poison(instr)) continue;
    for (int o = 0; o < instr->operand_count; o++) {
      fsdp_tensor *tensor = &program->tensors[program->operands[instr->first_operand + o].tensor];
      if (tensor->lifetime == FSDP_LIVE_ALWAYS) continue;
      if (tensor->end < 0) tensor->begin = i;
      tensor->end = i;
    }
  }
}

// ---- Order of issue

static int section_of_kind(const fsdp_program *program, fsdp_section_kind kind) {
  for (int s = 0; s < program->section_count; s++)
    if (program->sections[s].kind == kind) return s;
  return -1;
}

// One step with at most `max_middles` runs of the middle section.
static int step_order(const fsdp_program *program, int max_middles, int *out) {
  int count = 0;
  if (program->micro_batches == 1) {
    out[count++] = section_of_kind(program, FSDP_SECTION_ONLY);
  } else {
    int middles = program->micro_batches - 2;
    if (middles > max_middles) middles = max_middles;
    out[count++] = section_of_kind(program, FSDP_SECTION_FIRST);
    for (int i = 0; i < middles; i++) out[count++] = section_of_kind(program, FSDP_SECTION_MIDDLE);
    out[count++] = section_of_kind(program, FSDP_SECTION_LAST);
  }
  const int update = section_of_kind(program, FSDP_SECTION_UPDATE); // none in a program of evaluations alone
  if (update >= 0) out[count++] = update;
  for (int i = 0; i < count; i++)
    FSDP_CHECK(out[i] >= 0, "a step of %d micro-batches lacks a section", program->micro_batches);
  return count;
}

int fsdp_program_backward_begin(const fsdp_program *program, const fsdp_section *section) {
  for (int i = section->begin; i < section->end; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    if (instr->kind == FSDP_INSTR_OP && fsdp_op_phase_of(instr->op) == FSDP_OP_IN_BACKWARD) return i;
  }
  return section->end;
}

int fsdp_program_step_order(const fsdp_program *program, int *out) {
  return step_order(program, program->micro_batches, out);
}

// Every ordered pair of (step, evaluation, check, snapshot, exchange) appears side by side: a de Bruijn
// sequence of order 2, from its Lyndon words 0, 01, 02, ..., 1, 12, ..., closed by its first symbol.
int fsdp_program_seam_order(const fsdp_program *program, int middles, int out[FSDP_SEAM_RUNS_MAX]) {
  int symbols[FSDP_SECTION_KIND_COUNT], count = 0, symbol_count = 1; // symbol 0: a step
  for (int kind = FSDP_SECTION_EVALUATION; kind < FSDP_SECTION_KIND_COUNT; kind++) {
    int section = section_of_kind(program, (fsdp_section_kind)kind);
    if (section >= 0) symbols[symbol_count++] = section;
  }
  for (int a = 0; a < symbol_count; a++) {
    for (int b = a; b < symbol_count; b++) {
      if (a == 0)
        count += step_order(program, middles, out + count);
      else
        out[count++] = symbols[a];
      if (b > a) out[count++] = symbols[b];
    }
  }
  return count + step_order(program, middles, out + count);
}

// ---- Hash

// Numbers to hash: field by field, so that padding and pointers never count.
typedef struct hasher {
  XXH3_state_t *state;
  int64_t words[64];
  int count;
} hasher;

static void hash_flush(hasher *h) {
  XXH3_64bits_update(h->state, h->words, (size_t)h->count * sizeof h->words[0]);
  h->count = 0;
}

static void hash_i64(hasher *h, int64_t value) {
  h->words[h->count++] = value;
  if (h->count == (int)(sizeof h->words / sizeof h->words[0])) hash_flush(h);
}

static void hash_f32(hasher *h, float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  hash_i64(h, bits);
}

static void hash_f64(hasher *h, double value) {
  int64_t bits;
  memcpy(&bits, &value, sizeof bits);
  hash_i64(h, bits);
}

static void hash_text(hasher *h, const char *text) {
  hash_i64(h, (int64_t)strlen(text));
  hash_flush(h);
  XXH3_64bits_update(h->state, text, strlen(text));
}

static void hash_attrs(hasher *h, const fsdp_op_attrs *attrs) {
  const int64_t sizes[] = {
      attrs->batch,       attrs->seq,          attrs->channels,      attrs->heads,
      attrs->kv_heads,    attrs->head_dim,     attrs->intermediate,  attrs->vocabulary,
      attrs->in_features, attrs->out_features, attrs->out_stride,    attrs->out_offset,
      attrs->chunk_rows,  attrs->extent,       attrs->positions,     attrs->window,
      attrs->piece,       attrs->chunk,        attrs->kv_seq,        attrs->kv_parts,
      attrs->kv_piece,    attrs->ranks,        attrs->padding_token, attrs->weight_transposed,
      attrs->attention,   attrs->head_parts,   attrs->rotates_back,  attrs->weight_frozen,
      attrs->decays_some, attrs->experts,      attrs->slots,         attrs->route_normalises,
      attrs->routed,      attrs->arrivals,     attrs->first_routed};
  const int64_t routes[] = {(int64_t)attrs->route_score, attrs->route_groups, attrs->route_groups_kept,
                            attrs->route_group_best};
  const float factors[] = {attrs->eps,        attrs->max_norm, attrs->norm_weight,
                           attrs->norm_limit, attrs->adam_eps, attrs->weight_decay};
  if (attrs->balance_rate > 0) hash_f32(h, attrs->balance_rate);
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) hash_i64(h, sizes[i]);
  for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++) hash_f32(h, factors[i]);
  if (attrs->documents) hash_i64(h, attrs->documents);
  for (size_t i = 0; i < sizeof routes / sizeof routes[0] && attrs->experts; i++) hash_i64(h, routes[i]);
  if (attrs->experts) hash_f32(h, attrs->route_scale);
  if (attrs->held_experts) {
    hash_i64(h, attrs->held_experts);
    hash_i64(h, attrs->first_expert);
  }
  if (attrs->aux_weight > 0 || attrs->z_weight > 0) {
    hash_f32(h, attrs->aux_weight);
    hash_f32(h, attrs->z_weight);
    hash_i64(h, attrs->aux_of_rank);
  }
  if (attrs->products) hash_i64(h, attrs->products);
  if (attrs->rotary_dim) hash_i64(h, attrs->rotary_dim);
  if (attrs->loss_of_documents) hash_i64(h, 1);
  if (attrs->draws) {
    hash_f32(h, attrs->dropout);
    hash_i64(h, (int64_t)attrs->drop_key);
    hash_i64(h, attrs->draws);
    hash_i64(h, attrs->head_group);
  }
  hash_f64(h, attrs->beta1);
  hash_f64(h, attrs->beta2);
  hash_i64(h, attrs->inv_freq != NULL);
  if (!attrs->inv_freq) return;
  const int64_t rotated = attrs->rotary_dim ? attrs->rotary_dim : attrs->head_dim;
  for (int64_t i = 0; i < rotated / 2; i++) hash_f32(h, attrs->inv_freq[i]);
}

static void hash_affine(hasher *h, const fsdp_affine *affine) {
  hash_i64(h, affine->base);
  for (int axis = 0; axis < FSDP_MESH_AXES_MAX; axis++) hash_i64(h, affine->stride[axis]);
}

static void hash_mesh(hasher *h, const fsdp_program *program) {
  for (int axis = 0; axis < program->mesh.count; axis++) {
    hash_text(h, program->mesh.axes[axis].name);
    hash_i64(h, program->mesh.axes[axis].size);
  }
  for (int c = 0; c < program->comm_count; c++) {
    hash_i64(h, program->comms[c].axes);
    hash_i64(h, program->comms[c].stream);
  }
}

static void hash_instr(hasher *h, const fsdp_program *program, const fsdp_instr *instr) {
  hash_i64(h, instr->kind);
  hash_i64(h, instr->stream);
  hash_i64(h, instr->op);
  hash_attrs(h, &instr->attrs);
  hash_affine(h, &instr->first_index);
  hash_affine(h, &instr->second_index);
  if (instr->attrs.draws) {
    hash_affine(h, &instr->first_row);
    hash_affine(h, &instr->first_head);
  }
  hash_i64(h, instr->comm);
  hash_i64(h, instr->unit);
  hash_i64(h, instr->module);
  hash_i64(h, instr->operand_count);
  for (int o = 0; o < instr->operand_count; o++) {
    const fsdp_operand *operand = &program->operands[instr->first_operand + o];
    hash_i64(h, operand->tensor);
    hash_i64(h, operand->dtype);
    hash_i64(h, operand->access);
    hash_affine(h, &operand->offset);
    hash_i64(h, operand->size_bytes);
  }
  hash_i64(h, instr->wait_count);
  for (int w = 0; w < instr->wait_count; w++) {
    hash_i64(h, program->waits[instr->first_wait + w].position);
    hash_i64(h, program->waits[instr->first_wait + w].reason);
  }
}

static void hash_tensor(hasher *h, const fsdp_tensor *tensor) {
  hash_text(h, tensor->name);
  hash_i64(h, tensor->space);
  hash_i64(h, tensor->category);
  hash_i64(h, tensor->lifetime);
  hash_i64(h, tensor->unit);
  hash_i64(h, tensor->module);
  hash_i64(h, tensor->bytes);
  hash_i64(h, tensor->begin);
  hash_i64(h, tensor->end);
  hash_i64(h, tensor->address);
}

uint64_t fsdp_program_hash(const fsdp_program *program) {
  hasher h = {.state = XXH3_createState()};
  FSDP_CHECK(h.state && XXH3_64bits_reset(h.state) == XXH_OK, "XXH3 has no state");
  hash_i64(&h, program->instr_count);
  hash_i64(&h, program->tensor_count);
  hash_i64(&h, program->micro_batches);
  hash_mesh(&h, program);
  for (int space = 0; space < FSDP_SPACE_COUNT; space++) hash_i64(&h, program->arena_bytes[space]);
  for (int s = 0; s < program->section_count; s++) {
    hash_i64(&h, program->sections[s].kind);
    hash_i64(&h, program->sections[s].begin);
    hash_i64(&h, program->sections[s].end);
  }
  for (int i = 0; i < program->instr_count; i++) hash_instr(&h, program, &program->instrs[i]);
  for (int t = 0; t < program->tensor_count; t++) hash_tensor(&h, &program->tensors[t]);
  hash_flush(&h);
  uint64_t hash = XXH3_64bits_digest(h.state);
  XXH3_freeState(h.state);
  return hash;
}

// ---- Names and printing

const char *fsdp_category_name(fsdp_category category) {
  static const char *const names[] = {"parameters",  "gathered",  "gradients", "optimizer",
                                      "activations", "workspace", "inputs"};
  FSDP_CHECK((unsigned)category < FSDP_CATEGORY_COUNT, "category %d", (int)category);
  return names[category];
}

const char *fsdp_instr_kind_name(fsdp_instr_kind kind) {
  static const char *const names[] = {"op",
#define FSDP_COLLECTIVE(KIND, name, ...) #name,
#include "runtime/base/collectives.def"
                                      "h2d",     "d2h",     "feed_step", "feed_batch",
                                      "publish", "digests", "snapshot"};
  FSDP_CHECK((unsigned)kind < FSDP_INSTR_KIND_COUNT, "instruction kind %d", (int)kind);
  return names[kind];
}

const char *fsdp_instr_name(const fsdp_instr *instr) {
  return instr->kind == FSDP_INSTR_OP ? fsdp_op_name(instr->op) : fsdp_instr_kind_name(instr->kind);
}

const char *fsdp_section_name(fsdp_section_kind kind) {
  static const char *const names[] = {"only",       "first", "middle",   "last",    "update",
                                      "evaluation", "check", "snapshot", "exchange"};
  FSDP_CHECK((unsigned)kind < FSDP_SECTION_KIND_COUNT, "section kind %d", (int)kind);
  return names[kind];
}

// "+fsdp*N": how far an affine number moves with each coordinate.
static void print_moves(const fsdp_program *program, const fsdp_affine *affine, FILE *out) {
  for (int a = 0; a < program->mesh.count; a++)
    if (affine->stride[a] != 0)
      fprintf(out, " +%s*%lld", program->mesh.axes[a].name, (long long)affine->stride[a]);
}

// "r name[begin:end]", the range only if it is not the whole tensor.
static void print_operand(const fsdp_program *program, const fsdp_operand *operand, FILE *out) {
  const fsdp_tensor *tensor = &program->tensors[operand->tensor];
  bool moves = fsdp_affine_axes(&operand->offset, &program->mesh) != 0;
  fprintf(out, " %c %s", "?rwu"[operand->access & 3], tensor -> name);
  if (operand->size_bytes == tensor->bytes && operand->offset.base == 0 && !moves) return;
  fprintf(out, "[%lld:%lld", (long long)operand->offset.base,
          (long long)(operand->offset.base + operand->size_bytes));
  print_moves(program, &operand->offset, out);
  fprintf(out, "]");
}

static void print_instr(const fsdp_program *program, int position, FILE *out) {
  static const char *const reasons[] = {"data", "reuse", "policy"};
  const fsdp_instr *instr = &program->instrs[position];
  char name[64];
  snprintf(name, sizeof name, "%s", fsdp_instr_name(instr));
  if (instr->attrs.attention != FSDP_ATTENTION_CPU)
    snprintf(name + strlen(name), sizeof name - strlen(name), "[%s]",
             fsdp_attention_kernel_name(instr->attrs.attention));
  if (instr->attrs.products != FSDP_GROUPED_CPU)
    snprintf(name + strlen(name), sizeof name - strlen(name), "[%s]",
             fsdp_grouped_kernel_name(instr->attrs.products));
  fprintf(out, "%6d %-9s %-29s", position, fsdp_stream_name(instr->stream), name);
  if (instr->unit >= 0) fprintf(out, " unit=%d", instr->unit);
  if (instr->attrs.head_parts > 1) fprintf(out, " parts=%lld", (long long)instr->attrs.head_parts);
  if (instr->attrs.rotates_back) fprintf(out, " rotated");
  if (fsdp_instr_is_collective(instr)) {
    char axes[FSDP_MESH_TEXT_BYTES];
    fprintf(out, " over=%s", fsdp_mesh_print_axes(&program->mesh, program->comms[instr->comm].axes, axes));
  }
  if (instr->first_index.base != 0 || fsdp_affine_axes(&instr->first_index, &program->mesh) != 0) {
    fprintf(out, " first=%lld", (long long)instr->first_index.base);
    print_moves(program, &instr->first_index, out);
  }
  if (instr->attrs.chunk > 0) {
    fprintf(out, " second=%lld", (long long)instr->second_index.base);
    print_moves(program, &instr->second_index, out);
  }
  for (int o = 0; o < instr->operand_count; o++)
    print_operand(program, &program->operands[instr->first_operand + o], out);
  for (int w = 0; w < instr->wait_count; w++) {
    const fsdp_wait *wait = &program->waits[instr->first_wait + w];
    fprintf(out, "%s%d(%s)", w == 0 ? " | waits " : " ", wait->position, reasons[wait->reason]);
  }
  fputc('\n', out);
}

static const char legend[] =
    "# position, stream, instruction, unit, axes of a collective, first index of what a kernel works on;\n"
    "#   parts=N: attention's backward cuts the heads of a group over N blocks; rotated: it does\n"
    "#   rope_backward's work too;\n"
    "#   then its operands: r read, w written, u updated (both)\n"
    "#   [a:b] bytes a to b of the tensor, if that is not all of it; +fsdp*N: N bytes further on for each\n"
    "#   coordinate on that axis\n"
    "# waits P: starts when the latest issue of instruction P is done, for its data, for the reuse of its\n"
    "#   address, or by policy (how far a prefetch runs ahead)\n";

void fsdp_program_print(const fsdp_program *program, FILE *out) {
  fputs(legend, out);
  for (int s = 0; s < program->section_count; s++) {
    const fsdp_section *section = &program->sections[s];
    fprintf(out, "%s:\n", fsdp_section_name(section->kind));
    for (int i = section->begin; i < section->end; i++) print_instr(program, i, out);
  }
}
