#include "runtime/plan/memory/memory.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/memory/extend.h"
#include "runtime/plan/memory/pack.h"

#include <string.h>

// What an arena should not exceed, as a factor of the greatest sum of live bytes or as bytes above it; and
// where there is room.
#define ARENA_TIGHT       1.02
#define ARENA_TIGHT_BYTES (64 * 1024)
// A factor of the greatest sum of live bytes: the target of greedy packing.
#define PACK_TARGET 1.004
// What packing takes beside its items, as a factor, if it succeeds.
#define PACK_LOSS 1.005
// Comparisons of two items, about a nanosecond each.
#define EXTENDED_EFFORT INT64_C(10000000)
#define PACK_EFFORT     INT64_C(60000000)
// How far lifetimes are extended (extend.h), tried in this order: the less, the more waits, and the easier
// packing gets. next_share 0: as far as there is room. Fewer make tight plans of a search slower.
#define JOBS 32
static const struct {
  double next_share, further_share;
} extensions[] = {{0, 0.95}, {0, 0.8}, {1, 0.95}, {1, 0.9}, {1, 0.8}, {1, 0}, {0.9, 0.9}};

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

int64_t fsdp_memory_promised_bytes(int64_t greatest_bytes) {
  return fsdp_max_i64((int64_t)((double)greatest_bytes * ARENA_TIGHT), greatest_bytes + ARENA_TIGHT_BYTES);
}

int64_t *fsdp_memory_live(const fsdp_program *program, fsdp_space space, bool by_category) {
  const int64_t width = by_category ? FSDP_CATEGORY_COUNT : 1, count = program->instr_count * width;
  // Row i holds what changes at i first.
  int64_t *live = fsdp_alloc_zeroed((size_t)(count + width), sizeof *live);
  for (int t = 0; t < program->tensor_count; t++) {
    const fsdp_tensor *tensor = &program->tensors[t];
    if (tensor->space != space || !is_live_somewhere(tensor)) continue;
    int64_t *column = live + (by_category ? (int)tensor->category : 0);
    column[tensor->begin * width] += tensor->bytes;
    column[(tensor->end + 1) * width] -= tensor->bytes;
  }
  for (int64_t i = width; i < count; i++) live[i] += live[i - width];
  return live;
}

static void report_space(const fsdp_program *program, fsdp_space space, fsdp_memory_space_report *report) {
  *report = (fsdp_memory_space_report){.arena_bytes = program->arena_bytes[space]};
  int64_t *live = fsdp_memory_live(program, space, false);
  for (int i = 0, end = training_end(program); i < program->instr_count; i++) {
    report->greatest_bytes = fsdp_max_i64(report->greatest_bytes, live[i]);
    if (i >= end || (i > 0 && live[i] <= report->peak_bytes)) continue;
    report->peak_bytes = live[i];
    report->peak_position = i;
  }
  free(live);
  for (int t = 0; t < program->tensor_count; t++) {
    const fsdp_tensor *tensor = &program->tensors[t];
    if (tensor->space != space) continue;
    if (tensor->begin <= report->peak_position && report->peak_position <= tensor->end)
      report->peak_by_category[tensor->category] += tensor->bytes;
    if (tensor->lifetime != FSDP_LIVE_ALWAYS) continue;
    report->valley_bytes += tensor->bytes;
    report->valley_by_category[tensor->category] += tensor->bytes;
  }
}

// The report once the arena has its size, which holds all that live at one time.
static void report_arena(const fsdp_program *program, fsdp_space space, fsdp_memory_space_report *report) {
  report_space(program, space, report);
  FSDP_CHECK(report->peak_bytes <= report->greatest_bytes && report->greatest_bytes <= report->arena_bytes &&
                 report->valley_bytes <= report->arena_bytes,
             "valley %lld, peak %lld, greatest sum %lld, arena %lld", (long long)report->valley_bytes,
             (long long)report->peak_bytes, (long long)report->greatest_bytes,
             (long long)report->arena_bytes);
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
  const fsdp_extension extension = {
      .base = p.config.base, .next_share = 1, .further_share = 0.95, .jobs = JOBS};
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

// Packs until the end is not above `most`. Returns that end, or else the lowest, `top` among them.
static int64_t pack_extended(const fsdp_program *program, packing *p, double room_share, int64_t most,
                             int64_t top) {
  p->config.effort = EXTENDED_EFFORT;
  p->config.limit = 0;
  for (size_t i = 0; i < sizeof extensions / sizeof *extensions && top > most; i++) {
    const double next_share = extensions[i].next_share;
    const fsdp_extension extension = {.base = p->config.base,
                                      .next_share = next_share > 0 ? next_share : room_share,
                                      .further_share = extensions[i].further_share,
                                      .jobs = JOBS};
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
  const int64_t tight = fsdp_memory_promised_bytes(report.greatest_bytes);
  int64_t most = fsdp_max_i64(tight, fsdp_min_i64(room, (int64_t)(greatest * (1 + FSDP_ARENA_ROOM))));
  if (limit) most = fsdp_min_i64(most, limit);
  const double room_share = most > tight ? (double)most / greatest / PACK_LOSS : 0;
  const int64_t useful = report.greatest_bytes <= most ? most : 0; // nothing ends below the greatest sum
  p.config.useful = useful;
  int64_t top = pack_extended(program, &p, room_share, most, INT64_MAX);
  p.config.useful = 0;
  if (top > most) {
    p.config.effort = PACK_EFFORT;
    p.config.limit = tight;
    top = pack(program, &p, &(fsdp_extension){.base = p.config.base}, top);
  }
  // The lowest end of all is wanted, whole.
  if (top > most && useful > 0) top = pack_extended(program, &p, room_share, most, top);
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
    report_arena(program, (fsdp_space)space, &report->space[space]);
}

void fsdp_memory_draft(fsdp_program *program, bool reuse, fsdp_memory_report *report) {
  for (int space = 0; space < FSDP_SPACE_COUNT; space++) {
    if (reuse)
      pack_once(program, (fsdp_space)space);
    else
      spread_space(program, (fsdp_space)space);
    report_arena(program, (fsdp_space)space, &report->space[space]);
  }
}
