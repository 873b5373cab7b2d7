#include "runtime/plan/memory/memory.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/memory/extend.h"
#include "runtime/plan/memory/pack.h"

#include <string.h>

// A factor of the greatest sum of live bytes: the target of greedy packing.
#define PACK_TARGET 1.004
// What packing takes beside its items, as a factor, if it succeeds.
#define PACK_LOSS 1.005
// Comparisons of two items, about a nanosecond each.
#define EXTENDED_EFFORT INT64_C(10000000)
#define PACK_EFFORT     INT64_C(60000000)
// What is tried of extended lifetimes (extend.h), one after the other; next_share 0: what there is room for.
static const fsdp_extension extensions[] = {{.next_share = 0, .further_share = 0.95, .jobs = 32},
                                            {.next_share = 0, .further_share = 0.95, .jobs = 16},
                                            {.next_share = 0, .further_share = 0.8, .jobs = 32},
                                            {.next_share = 1, .further_share = 0.95, .jobs = 32},
                                            {.next_share = 1, .further_share = 0.95, .jobs = 16},
                                            {.next_share = 1, .further_share = 0.9, .jobs = 32},
                                            {.next_share = 1, .further_share = 0.8, .jobs = 32},
                                            {.next_share = 1, .further_share = 0, .jobs = 32},
                                            {.next_share = 0.9, .further_share = 0.9, .jobs = 32}};
enum { EXTENSIONS = sizeof extensions / sizeof *extensions, EXTENSION_OF_DRAFTS = 3 };

static int64_t tensor_align(int64_t bytes) {
  int64_t align = FSDP_TENSOR_ALIGN_BYTES;
  while (align > FSDP_TENSOR_SMALL_ALIGN_BYTES && align * 64 > bytes) align /= 2;
  while (align > 4 && align / 2 >= bytes) align /= 2;
  return align;
}

static bool is_live_somewhere(const fsdp_tensor *tensor) {
  return tensor->end >= tensor->begin && tensor->bytes > 0;
}

// One past the last position of the sections that make up a training step.
static int training_end(const fsdp_program *program) {
  for (int s = 0; s < program->section_count; s++)
    if (program->sections[s].kind >= FSDP_SECTION_EVALUATION) return program->sections[s].begin;
  return program->instr_count;
}

// ---- Report

void fsdp_memory_timeline(const fsdp_program *program, fsdp_space space, int64_t *out) {
  size_t row_bytes = FSDP_CATEGORY_COUNT * sizeof *out;
  // Row i holds what changes at i; ends fall on row end + 1, which the last row does not need.
  memset(out, 0, (size_t)program->instr_count * row_bytes);
  for (int t = 0; t < program->tensor_count; t++) {
    const fsdp_tensor *tensor = &program->tensors[t];
    if (tensor->space != space || !is_live_somewhere(tensor)) continue;
    out[(int64_t)tensor->begin * FSDP_CATEGORY_COUNT + tensor->category] += tensor->bytes;
    if (tensor->end + 1 < program->instr_count)
      out[(int64_t)(tensor->end + 1) * FSDP_CATEGORY_COUNT + tensor->category] -= tensor->bytes;
  }
  for (int64_t i = FSDP_CATEGORY_COUNT; i < (int64_t)program->instr_count * FSDP_CATEGORY_COUNT; i++)
    out[i] += out[i - FSDP_CATEGORY_COUNT];
}

static void report_space(const fsdp_program *program, fsdp_space space, fsdp_memory_space_report *report) {
  *report = (fsdp_memory_space_report){.arena_bytes = program->arena_bytes[space]};
  for (int t = 0; t < program->tensor_count; t++) {
    const fsdp_tensor *tensor = &program->tensors[t];
    if (tensor->space != space || tensor->lifetime != FSDP_LIVE_ALWAYS) continue;
    report->valley_bytes += tensor->bytes;
    report->valley_by_category[tensor->category] += tensor->bytes;
  }
  int64_t *timeline = fsdp_alloc((size_t)program->instr_count * FSDP_CATEGORY_COUNT * sizeof *timeline);
  fsdp_memory_timeline(program, space, timeline);
  for (int i = 0, end = training_end(program); i < program->instr_count; i++) {
    const int64_t *row = timeline + (int64_t)i * FSDP_CATEGORY_COUNT;
    int64_t live = 0;
    for (int c = 0; c < FSDP_CATEGORY_COUNT; c++) live += row[c];
    report->greatest_bytes = fsdp_max_i64(report->greatest_bytes, live);
    if (i >= end || (i > 0 && live <= report->peak_bytes)) continue;
    report->peak_bytes = live;
    report->peak_position = i;
    memcpy(report->peak_by_category, row, sizeof report->peak_by_category);
  }
  free(timeline);
}

static int compare_owner_keys(const void *a, const void *b) {
  const fsdp_memory_owner *x = a, *y = b;
  if (x->category != y->category) return (int)x->category - (int)y->category;
  if (x->unit != y->unit) return x->unit - y->unit;
  if (x->module != y->module) return x->module - y->module;
  return x->largest_tensor - y->largest_tensor;
}

static int compare_owner_bytes(const void *a, const void *b) {
  const fsdp_memory_owner *x = a, *y = b;
  if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
  return x->largest_tensor - y->largest_tensor;
}

int fsdp_memory_owners(const fsdp_program *program, fsdp_space space, int position, fsdp_memory_owner *out,
                       int max) {
  fsdp_memory_owner *owners = fsdp_alloc((size_t)program->tensor_count * sizeof *owners);
  int live = 0, count = 0;
  for (int t = 0; t < program->tensor_count; t++) {
    const fsdp_tensor *tensor = &program->tensors[t];
    if (tensor->space != space || tensor->begin > position || tensor->end < position) continue;
    int module = tensor->unit >= 0 ? -1 : tensor->module;
    owners[live++] = (fsdp_memory_owner){tensor->category, tensor->unit, module, tensor->bytes, 1, t};
  }
  qsort(owners, (size_t)live, sizeof *owners, compare_owner_keys);
  for (int i = 0; i < live; i++) {
    fsdp_memory_owner *last = count > 0 ? &owners[count - 1] : NULL;
    const fsdp_memory_owner *next = &owners[i];
    if (!last || last->category != next->category || last->unit != next->unit ||
        last->module != next->module) {
      owners[count++] = *next;
      continue;
    }
    if (next->bytes > program->tensors[last->largest_tensor].bytes)
      last->largest_tensor = next->largest_tensor;
    last->bytes += next->bytes;
    last->tensor_count++;
  }
  qsort(owners, (size_t)count, sizeof *owners, compare_owner_bytes);
  for (int i = 0; i < count && i < max; i++) out[i] = owners[i];
  free(owners);
  return count;
}

// ---- Addresses

// Tensors that always live lie at the bottom in their order, the small ones after the others (no gaps
// between).
static int64_t place_always(fsdp_program *program, fsdp_space space) {
  int64_t top = 0;
  for (int pass = 0; pass < 2; pass++) {
    for (int t = 0; t < program->tensor_count; t++) {
      fsdp_tensor *tensor = &program->tensors[t];
      if (tensor->space != space || tensor->lifetime != FSDP_LIVE_ALWAYS) continue;
      if ((tensor->bytes < FSDP_TENSOR_ALIGN_BYTES) != (pass == 1)) continue;
      tensor->address = fsdp_round_up(top, tensor_align(tensor->bytes));
      top = tensor->address + tensor->bytes;
    }
  }
  return top;
}

// The items of a space, and the tensors that they stand for.
typedef struct packing {
  fsdp_pack_config config;
  fsdp_pack_item *items;
  int *tensors;
  int count;
} packing;

static packing collect_items(fsdp_program *program, fsdp_space space, int window_begins[FSDP_MAX_SECTIONS]) {
  for (int s = 0; s < program->section_count; s++) window_begins[s] = program->sections[s].begin;
  packing p = {.config = {.window_begins = window_begins,
                          .window_count = program->section_count,
                          .base = place_always(program, space),
                          .target = PACK_TARGET}};
  p.items = fsdp_alloc((size_t)program->tensor_count * sizeof *p.items);
  p.tensors = fsdp_alloc((size_t)program->tensor_count * sizeof *p.tensors);
  for (int t = 0; t < program->tensor_count; t++) {
    fsdp_tensor *tensor = &program->tensors[t];
    if (tensor->space != space || tensor->lifetime == FSDP_LIVE_ALWAYS) continue;
    tensor->address = 0;
    if (!is_live_somewhere(tensor)) continue;
    p.tensors[p.count] = t;
    p.items[p.count++] =
        (fsdp_pack_item){tensor->begin, tensor->end, tensor->bytes, tensor_align(tensor->bytes), 0};
  }
  return p;
}

// Packs lifetimes that are extended; next_share 0: as they are. Overwrites p->items if that ends lower than
// `top`. Returns the end of the highest item.
static int64_t pack(const fsdp_program *program, packing *p, const fsdp_extension *extension, int64_t top) {
  fsdp_pack_item *items = fsdp_alloc((size_t)p->count * sizeof *items);
  for (int i = 0; i < p->count; i++) {
    items[i] = p->items[i];
    items[i].begin = program->tensors[p->tensors[i]].begin;
    items[i].end = program->tensors[p->tensors[i]].end;
  }
  if (extension->next_share > 0) fsdp_extend_lifetimes(program, extension, items, p->count);
  int64_t packed = fsdp_pack(&p->config, items, p->count);
  if (packed < top) memcpy(p->items, items, (size_t)p->count * sizeof *items);
  free(items);
  return fsdp_min_i64(top, packed);
}

static void finish_packing(fsdp_program *program, fsdp_space space, packing *p, int64_t top) {
  program->arena_bytes[space] = top;
  for (int i = 0; i < p->count; i++) program->tensors[p->tensors[i]].address = p->items[i].address;
  free(p->tensors);
  free(p->items);
}

// A first attempt, which may end far above the peak.
static void pack_once(fsdp_program *program, fsdp_space space) {
  int window_begins[FSDP_MAX_SECTIONS];
  packing p = collect_items(program, space, window_begins);
  fsdp_extension extension = extensions[EXTENSION_OF_DRAFTS];
  extension.base = p.config.base;
  finish_packing(program, space, &p, pack(program, &p, &extension, INT64_MAX));
}

// Every tensor at an address of its own.
static void spread_space(fsdp_program *program, fsdp_space space) {
  int64_t top = place_always(program, space);
  for (int t = 0; t < program->tensor_count; t++) {
    fsdp_tensor *tensor = &program->tensors[t];
    if (tensor->space != space || tensor->lifetime == FSDP_LIVE_ALWAYS) continue;
    tensor->address = fsdp_round_up(top, tensor_align(tensor->bytes));
    if (is_live_somewhere(tensor)) top = tensor->address + tensor->bytes;
  }
  program->arena_bytes[space] = top;
}

// The more lifetimes are extended, the fewer waits. Returns the end of the first packing, or else of the
// lowest, that does not end above `most`.
static int64_t pack_extended(const fsdp_program *program, packing *p, double room_share, int64_t most) {
  int64_t top = INT64_MAX;
  p->config.effort = EXTENDED_EFFORT;
  for (int i = 0; i < EXTENSIONS && top > most; i++) {
    fsdp_extension extension = extensions[i];
    extension.base = p->config.base;
    if (extension.next_share == 0) extension.next_share = room_share;
    if (extension.next_share > 0) top = pack(program, p, &extension, top);
  }
  return top;
}

// `limit`: what the arena may take, `room`: and if that saves waits; 0: unknown.
static void pack_space(fsdp_program *program, fsdp_space space, int64_t limit, int64_t room) {
  int window_begins[FSDP_MAX_SECTIONS];
  packing p = collect_items(program, space, window_begins);
  fsdp_memory_space_report report;
  report_space(program, space, &report);
  const double greatest = (double)report.greatest_bytes;
  const int64_t tight = (int64_t)(greatest * FSDP_ARENA_TIGHT);
  int64_t most = fsdp_max_i64(tight, fsdp_min_i64(room, (int64_t)(greatest * FSDP_ARENA_ROOMY)));
  if (limit) most = fsdp_min_i64(most, limit);
  const double room_share = most > tight ? (double)most / greatest / PACK_LOSS : 0;
  int64_t top = pack_extended(program, &p, room_share, most);
  p.config.effort = PACK_EFFORT;
  p.config.limit = tight;
  if (top > most) top = pack(program, &p, &(fsdp_extension){.base = p.config.base}, top);
  finish_packing(program, space, &p, top);
}

void fsdp_memory_plan(fsdp_program *program, const fsdp_memory_limits *limits, fsdp_memory_report *report) {
  pack_space(program, FSDP_SPACE_HOST, limits->bytes[FSDP_SPACE_HOST], 0);
  int64_t limit = limits->bytes[FSDP_SPACE_DEVICE];
  if (limits->shared_bytes) {
    const int64_t left = fsdp_max_i64(limits->shared_bytes - program->arena_bytes[FSDP_SPACE_HOST], 1);
    limit = limit ? fsdp_min_i64(limit, left) : left;
  }
  pack_space(program, FSDP_SPACE_DEVICE, limit, limits->room_bytes);
  for (int space = 0; space < FSDP_SPACE_COUNT; space++)
    report_space(program, (fsdp_space)space, &report->space[space]);
}

void fsdp_memory_draft(fsdp_program *program, bool reuse, fsdp_memory_report *report) {
  for (int space = 0; space < FSDP_SPACE_COUNT; space++) {
    if (reuse)
      pack_once(program, (fsdp_space)space);
    else
      spread_space(program, (fsdp_space)space);
    report_space(program, (fsdp_space)space, &report->space[space]);
  }
}
