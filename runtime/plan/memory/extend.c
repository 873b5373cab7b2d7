#include "runtime/plan/memory/extend.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <stdlib.h>

// Items of fewer bytes than this part of the greatest sum are small.
#define SMALL_PART 10000
// A transfer of fewer bytes than this part of the previous job's is merged into that job.
#define JOB_PART 4

// ---- Jobs

// The most bytes that the instruction accesses of one tensor.
static int64_t bytes_of(const fsdp_program *program, const fsdp_instr *instr) {
  int64_t most = 0;
  for (int o = instr->first_operand; o < instr->first_operand + instr->operand_count; o++)
    most = fsdp_max_i64(most, program->operands[o].size_bytes);
  return most;
}

// Marks the instructions of a section with which a stream other than compute begins a job.
static void mark_jobs(const fsdp_program *program, const fsdp_section *section, bool *begins) {
  int64_t job_bytes[FSDP_STREAM_COUNT] = {0}; // what the stream's job moves
  int job_computes[FSDP_STREAM_COUNT] = {0};  // instructions of compute before its last large instruction
  int computes = 1;
  for (int i = section->begin; i < section->end; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    const fsdp_stream stream = instr->stream;
    begins[i] = false;
    if (stream == FSDP_STREAM_COMPUTE) {
      computes++;
      continue;
    }
    const int64_t bytes = bytes_of(program, instr);
    if (bytes < job_bytes[stream] / JOB_PART) continue;
    begins[i] = computes > job_computes[stream];
    job_bytes[stream] = begins[i] ? bytes : fsdp_max_i64(job_bytes[stream], bytes);
    job_computes[stream] = computes;
  }
}

// By position: where the stream begins the job after this one, or the section's last position. On compute:
// the position itself.
static int *next_jobs(const fsdp_program *program) {
  int *next = fsdp_alloc((size_t)program->instr_count * sizeof *next);
  bool *begins = fsdp_alloc((size_t)program->instr_count * sizeof *begins);
  for (int s = 0; s < program->section_count; s++) {
    const fsdp_section *section = &program->sections[s];
    int after[FSDP_STREAM_COUNT];
    for (int stream = 0; stream < FSDP_STREAM_COUNT; stream++) after[stream] = section->end - 1;
    mark_jobs(program, section, begins);
    for (int i = section->end - 1; i >= section->begin; i--) {
      const fsdp_stream stream = program->instrs[i].stream;
      next[i] = stream == FSDP_STREAM_COMPUTE ? i : after[stream];
      if (begins[i]) after[stream] = i;
    }
  }
  free(begins);
  return next;
}

// ---- Lifetimes

// Positions of a block, whose sums rise together where a lifetime is extended over all of them. Few, since
// most lifetimes are extended by tens of positions; small items', by thousands.
#define BLOCK 16

typedef struct block {
  int64_t added;    // to every sum of the block, beside what `live` holds
  int64_t greatest; // of what `live` holds
} block;

typedef struct extender {
  const fsdp_program *program;
  fsdp_pack_item *items;
  int count;
  int64_t *live; // by position, with what is added to its block: the base and the items, with their alignment
  block *blocks;
  int64_t greatest;
} extender;

static int64_t size_of(const fsdp_pack_item *item) {
  return fsdp_round_up(item->bytes, item->align);
}

static void sum_live(extender *e, int64_t base) {
  e->live = fsdp_alloc_zeroed((size_t)e->program->instr_count + 1, sizeof *e->live);
  e->live[0] = base;
  for (int i = 0; i < e->count; i++) {
    e->live[e->items[i].begin] += size_of(&e->items[i]);
    e->live[e->items[i].end + 1] -= size_of(&e->items[i]);
  }
  for (int p = 1; p < e->program->instr_count; p++) e->live[p] += e->live[p - 1];
  e->blocks = fsdp_alloc_zeroed((size_t)e->program->instr_count / BLOCK + 1, sizeof *e->blocks);
  for (int p = 0; p < e->program->instr_count; p++) {
    e->blocks[p / BLOCK].greatest = fsdp_max_i64(e->blocks[p / BLOCK].greatest, e->live[p]);
    e->greatest = fsdp_max_i64(e->greatest, e->live[p]);
  }
}

// Adds to every sum of a block. False, and nothing is added, if one would get above the limit.
static bool add_to_block(block *b, int64_t bytes, int64_t limit) {
  if (b->greatest + b->added + bytes > limit) return false;
  b->added += bytes;
  return true;
}

// Adds to the sum at a position of a block, with the limit and the return of add_to_block.
static bool add_at(block *b, int64_t *live, int64_t bytes, int64_t limit) {
  const int64_t sum = *live + bytes;
  if (sum + b->added > limit) return false;
  *live = sum;
  b->greatest = fsdp_max_i64(b->greatest, sum);
  return true;
}

// Moves an end of the item's lifetime away from its other one, to `to`, as long as no sum gets above the
// limit. False if it does not get there.
static bool extend(extender *e, const fsdp_pack_item *item, int *end, int to, int64_t limit) {
  const int64_t bytes = size_of(item);
  const int step = to > *end ? 1 : -1;
  while (*end != to) {
    const int next = *end + step, border = step > 0 ? next : *end; // a block begins there?
    block *b = &e->blocks[next / BLOCK];
    if (border % BLOCK == 0 && abs(to - *end) >= BLOCK && add_to_block(b, bytes, limit))
      *end += step * BLOCK;
    else if (add_at(b, &e->live[next], bytes, limit))
      *end = next;
    else
      return false;
  }
  return true;
}

static const fsdp_section *section_at(const fsdp_program *program, int position) {
  int s = 0;
  while (program->sections[s].end <= position) s++;
  return &program->sections[s];
}

static bool is_small(const extender *e, const fsdp_pack_item *item) {
  return item->bytes < e->greatest / SMALL_PART;
}

// An item that may live longer by a further job.
typedef struct candidate {
  int item, end; // the end that it has, by the jobs so far
} candidate;

void fsdp_extend_lifetimes(const fsdp_program *program, const fsdp_extension *extension,
                           fsdp_pack_item *items, int count) {
  extender e = {.program = program, .items = items, .count = count};
  if (count == 0) return;
  sum_live(&e, extension->base);
  int *next = next_jobs(program), candidate_count = 0;
  candidate *candidates = fsdp_alloc((size_t)count * sizeof *candidates);
  for (int i = 0; i < count; i++) {
    if (!is_small(&e, &items[i])) {
      candidates[candidate_count++] = (candidate){i, items[i].end};
      continue;
    }
    extend(&e, &items[i], &items[i].begin, section_at(program, items[i].begin)->begin, e.greatest);
    extend(&e, &items[i], &items[i].end, section_at(program, items[i].end)->end - 1, e.greatest);
  }
  int64_t limit = (int64_t)(extension->next_share * (double)e.greatest);
  for (int job = 1; job <= extension->jobs; job++) {
    int kept = 0;
    for (int i = 0; i < candidate_count; i++) {
      const candidate c = {candidates[i].item, next[candidates[i].end]};
      if (c.end != candidates[i].end && extend(&e, &items[c.item], &items[c.item].end, c.end, limit))
        candidates[kept++] = c;
    }
    candidate_count = kept;
    limit = (int64_t)(extension->further_share * (double)e.greatest);
  }
  free(candidates);
  free(next);
  free(e.live);
  free(e.blocks);
}
