#include "runtime/plan/memory/memory.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/memory/pack.h"

#include <string.h>

// Factors of the greatest sum of live bytes: the target of greedy packing, the most that a packing with
// extended lifetimes may cost, and what no packing should exceed.
#define PACK_TARGET    1.004
#define EXTENDED_LIMIT 1.01
#define ARENA_LIMIT    1.02
// Comparisons of two items, about a nanosecond each.
#define EXTENDED_EFFORT INT64_C(30000000)
#define PACK_EFFORT     INT64_C(60000000)

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

// By position: up to where bytes last accessed there should preferably stay unused. A stream other than
// compute is still busy with them, and has finished when it turns to a different unit.
static int *quiet_positions(const fsdp_program *program) {
  int *quiet = fsdp_alloc((size_t)program->instr_count * sizeof *quiet);
  for (int s = 0; s < program->section_count; s++) {
    const fsdp_section *section = &program->sections[s];
    int next[FSDP_STREAM_COUNT]; // the stream's next instruction
    for (int stream = 0; stream < FSDP_STREAM_COUNT; stream++) next[stream] = -1;
    for (int i = section->end - 1; i >= section->begin; i--) {
      const fsdp_instr *instr = &program->instrs[i];
      int after = next[instr->stream];
      next[instr->stream] = i;
      if (instr->stream == FSDP_STREAM_COMPUTE)
        quiet[i] = i;
      else if (after < 0)
        quiet[i] = section->end - 1;
      else
        quiet[i] = program->instrs[after].unit == instr->unit ? quiet[after] : after;
    }
  }
  return quiet;
}

// Lets items end later if that does not raise the greatest sum of live bytes.
static void extend_lifetimes(const fsdp_program *program, fsdp_pack_item *items, int count) {
  int64_t *live = fsdp_alloc_zeroed((size_t)program->instr_count + 1, sizeof *live), greatest = 0;
  int *quiet = quiet_positions(program);
  for (int i = 0; i < count; i++) {
    int64_t bytes = fsdp_round_up(items[i].bytes, items[i].align);
    live[items[i].begin] += bytes;
    live[items[i].end + 1] -= bytes;
  }
  for (int p = 1; p < program->instr_count; p++) live[p] += live[p - 1];
  for (int p = 0; p < program->instr_count; p++) greatest = fsdp_max_i64(greatest, live[p]);
  for (int i = 0; i < count; i++) {
    int64_t bytes = fsdp_round_up(items[i].bytes, items[i].align);
    int last = quiet[items[i].end];
    while (items[i].end < last && live[items[i].end + 1] + bytes <= greatest) live[++items[i].end] += bytes;
  }
  free(quiet);
  free(live);
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

// Packs lifetimes as they are; overwrites `items` if that ends lower than `top`. Returns the end of the
// highest item.
static int64_t pack_strictly(const fsdp_program *program, packing *p, int64_t top, int64_t limit) {
  fsdp_pack_item *items = fsdp_alloc((size_t)p->count * sizeof *items);
  for (int i = 0; i < p->count; i++) {
    items[i] = p->items[i];
    items[i].end = program->tensors[p->tensors[i]].end;
  }
  p->config.effort = PACK_EFFORT;
  p->config.limit = limit;
  int64_t strict_top = fsdp_pack(&p->config, items, p->count);
  if (strict_top < top) memcpy(p->items, items, (size_t)p->count * sizeof *items);
  free(items);
  return fsdp_min_i64(top, strict_top);
}

// A first attempt, which may end far above the peak.
static void pack_once(fsdp_program *program, fsdp_space space) {
  int window_begins[FSDP_MAX_SECTIONS];
  packing p = collect_items(program, space, window_begins);
  extend_lifetimes(program, p.items, p.count);
  program->arena_bytes[space] = fsdp_pack(&p.config, p.items, p.count);
  for (int i = 0; i < p.count; i++) program->tensors[p.tensors[i]].address = p.items[i].address;
  free(p.tensors);
  free(p.items);
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

static void pack_space(fsdp_program *program, fsdp_space space) {
  int window_begins[FSDP_MAX_SECTIONS];
  packing p = collect_items(program, space, window_begins);
  fsdp_memory_space_report report;
  report_space(program, space, &report);
  p.config.effort = EXTENDED_EFFORT;
  extend_lifetimes(program, p.items, p.count);
  int64_t top = fsdp_pack(&p.config, p.items, p.count);
  if ((double)top > (double)report.greatest_bytes * EXTENDED_LIMIT)
    top = pack_strictly(program, &p, top, (int64_t)((double)report.greatest_bytes * ARENA_LIMIT));
  for (int i = 0; i < p.count; i++) program->tensors[p.tensors[i]].address = p.items[i].address;
  program->arena_bytes[space] = top;
  free(p.tensors);
  free(p.items);
}

void fsdp_memory_plan(fsdp_program *program, fsdp_memory_report *report) {
  for (int space = 0; space < FSDP_SPACE_COUNT; space++) {
    pack_space(program, (fsdp_space)space);
    report_space(program, (fsdp_space)space, &report->space[space]);
  }
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
