#include "tests/support/oracle.h"

#include "runtime/base/check.h"

#include <string.h>

struct oracle {
  const fsdp_program *program;
  int event_count, words; // words of one row of bits
  int *positions;         // by event
  uint64_t *conflicts;    // row e: the earlier events that e conflicts with
  uint64_t *before;       // row e: the events that come before e
};

static int shard_ranks(const fsdp_program *program) {
  return program->mesh.size[FSDP_AXIS_FSDP];
}

static void byte_range(const fsdp_program *program, const fsdp_operand *operand, int rank, int64_t *low,
                       int64_t *high) {
  *low =
      program->tensors[operand->tensor].address + operand->offset_bytes + rank * operand->rank_stride_bytes;
  *high = *low + operand->size_bytes;
}

static bool ranges_meet(const fsdp_program *program, const fsdp_operand *x, const fsdp_operand *y,
                        oracle_ranks ranks) {
  int64_t low_x = INT64_MAX, high_x = INT64_MIN, low_y = INT64_MAX, high_y = INT64_MIN;
  for (int rank = 0; rank < shard_ranks(program); rank++) {
    int64_t a, b, c, d;
    byte_range(program, x, rank, &a, &b);
    byte_range(program, y, rank, &c, &d);
    if (ranks == ORACLE_EACH_RANK && a < d && c < b && a < b && c < d) return true;
    low_x = a < low_x ? a : low_x, high_x = b > high_x ? b : high_x;
    low_y = c < low_y ? c : low_y, high_y = d > high_y ? d : high_y;
  }
  return ranks == ORACLE_HULL && low_x < high_y && low_y < high_x && x->size_bytes > 0 && y->size_bytes > 0;
}

static bool conflict(const fsdp_program *program, int position, int other, oracle_ranks ranks) {
  const fsdp_instr *a = &program->instrs[position], *b = &program->instrs[other];
  for (int i = 0; i < a->operand_count; i++) {
    for (int j = 0; j < b->operand_count; j++) {
      const fsdp_operand *x = &program->operands[a->first_operand + i];
      const fsdp_operand *y = &program->operands[b->first_operand + j];
      if (x->access == FSDP_READ && y->access == FSDP_READ) continue;
      if (program->tensors[x->tensor].space != program->tensors[y->tensor].space) continue;
      if (ranges_meet(program, x, y, ranks)) return true;
    }
  }
  return false;
}

oracle *oracle_create(const fsdp_program *program, oracle_ranks ranks) {
  oracle *o = fsdp_alloc_zeroed(1, sizeof *o);
  int order[32], sections = fsdp_program_seam_order(program, order), n = program->instr_count;
  for (int k = 0; k < sections; k++)
    o->event_count += program->sections[order[k]].end - program->sections[order[k]].begin;
  o->program = program;
  o->words = (o->event_count + 63) / 64;
  o->positions = fsdp_alloc((size_t)o->event_count * sizeof *o->positions);
  o->conflicts = fsdp_alloc_zeroed((size_t)o->event_count * (size_t)o->words, sizeof *o->conflicts);
  o->before = fsdp_alloc((size_t)o->event_count * (size_t)o->words * sizeof *o->before);
  for (int k = 0, e = 0; k < sections; k++)
    for (int i = program->sections[order[k]].begin; i < program->sections[order[k]].end; i++)
      o->positions[e++] = i;
  bool *table = fsdp_alloc((size_t)n * (size_t)n * sizeof *table);
  for (int i = 0; i < n; i++)
    for (int j = 0; j <= i; j++) table[i * n + j] = table[j * n + i] = conflict(program, i, j, ranks);
  for (int e = 0; e < o->event_count; e++)
    for (int f = 0; f < e; f++)
      if (table[o->positions[e] * n + o->positions[f]])
        o->conflicts[(int64_t)e * o->words + f / 64] |= UINT64_C(1) << (f % 64);
  free(table);
  return o;
}

void oracle_destroy(oracle *o) {
  free(o->positions);
  free(o->conflicts);
  free(o->before);
  free(o);
}

static void add_before(oracle *o, int event, int earlier) {
  uint64_t *row = o->before + (int64_t)event * o->words;
  const uint64_t *from = o->before + (int64_t)earlier * o->words;
  for (int w = 0; w <= event / 64; w++) row[w] |= from[w];
  row[earlier / 64] |= UINT64_C(1) << (earlier % 64);
}

bool oracle_finds_race(oracle *o, int *position, int *other) {
  const fsdp_program *program = o->program;
  int *recent = fsdp_alloc((size_t)program->instr_count * sizeof *recent), on_stream[FSDP_STREAM_COUNT];
  bool found = false;
  for (int i = 0; i < program->instr_count; i++) recent[i] = -1;
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) on_stream[s] = -1;
  for (int e = 0; e < o->event_count && !found; e++) {
    const fsdp_instr *instr = &program->instrs[o->positions[e]];
    memset(o->before + (int64_t)e * o->words, 0, (size_t)o->words * sizeof *o->before);
    if (on_stream[instr->stream] >= 0) add_before(o, e, on_stream[instr->stream]);
    for (int w = 0; w < instr->wait_count; w++) {
      int awaited = recent[program->waits[instr->first_wait + w].position];
      if (awaited >= 0) add_before(o, e, awaited);
    }
    on_stream[instr->stream] = recent[o->positions[e]] = e;
    for (int w = 0; w <= e / 64 && !found; w++) {
      uint64_t unordered = o->conflicts[(int64_t)e * o->words + w] & ~o->before[(int64_t)e * o->words + w];
      found = unordered != 0;
      if (found && position) *position = o->positions[e];
      if (found && other) *other = o->positions[w * 64 + __builtin_ctzll(unordered)];
    }
  }
  free(recent);
  return found;
}

static bool poisons(const fsdp_instr *instr) {
  return instr->kind == FSDP_INSTR_OP && instr->op == FSDP_OP_POISON;
}

bool oracle_finds_out_of_range(const fsdp_program *program) {
  for (int t = 0; t < program->tensor_count; t++) {
    const fsdp_tensor *tensor = &program->tensors[t];
    if (tensor->address < 0 || tensor->address + tensor->bytes > program->arena_bytes[tensor->space])
      return true;
  }
  for (int i = 0; i < program->instr_count; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    for (int o = 0; o < instr->operand_count; o++) {
      const fsdp_operand *operand = &program->operands[instr->first_operand + o];
      const fsdp_tensor *tensor = &program->tensors[operand->tensor];
      if (!poisons(instr) && (i < tensor->begin || i > tensor->end)) return true;
      for (int rank = 0; rank < shard_ranks(program); rank++) {
        int64_t low, high;
        byte_range(program, operand, rank, &low, &high);
        if (low < tensor->address || high > tensor->address + tensor->bytes || high < low) return true;
      }
    }
  }
  return false;
}

bool oracle_finds_overlap(const fsdp_program *program) {
  for (int t = 0; t < program->tensor_count; t++) {
    for (int u = 0; u < t; u++) {
      const fsdp_tensor *x = &program->tensors[t], *y = &program->tensors[u];
      if (x->space != y->space || x->end < x->begin || y->end < y->begin || !x->bytes || !y->bytes) continue;
      if (x->begin <= y->end && y->begin <= x->end && x->address < y->address + y->bytes &&
          y->address < x->address + x->bytes)
        return true;
    }
  }
  return false;
}

// Marks what an operand covers with `tag`, or (check) says whether all of it has that tag already.
static bool sweep(const fsdp_program *program, int32_t *halves[], const fsdp_operand *operand, int rank,
                  int32_t tag, bool check) {
  int64_t low, high;
  byte_range(program, operand, rank, &low, &high);
  for (int64_t i = low / 2; i < (high + 1) / 2; i++) {
    int32_t *half = &halves[program->tensors[operand->tensor].space][i];
    if (check && *half != tag) return false;
    *half = tag;
  }
  return true;
}

// One number for each lifetime of each tensor; 0 is nobody's.
static int32_t lifetime_tag(const fsdp_program *program, int tensor, int run, int step) {
  fsdp_lifetime lifetime = program->tensors[tensor].lifetime;
  return 1 + tensor * 64 +
         (lifetime == FSDP_LIVE_ALWAYS ? 0
          : lifetime == FSDP_LIVE_STEP ? 1 + step
                                       : 8 + run);
}

static bool stale_on_rank(const fsdp_program *program, int rank) {
  int order[32], runs = fsdp_program_seam_order(program, order), step = 0;
  int32_t *halves[FSDP_SPACE_COUNT];
  for (int space = 0; space < FSDP_SPACE_COUNT; space++)
    halves[space] = fsdp_alloc_zeroed((size_t)program->arena_bytes[space] / 2 + 2, sizeof **halves);
  for (int t = 0; t < program->tensor_count; t++) {
    fsdp_operand whole = {.tensor = t, .size_bytes = program->tensors[t].bytes};
    if (program->tensors[t].lifetime == FSDP_LIVE_ALWAYS)
      sweep(program, halves, &whole, 0, lifetime_tag(program, t, 0, 0), false);
  }
  bool stale = false;
  for (int run = 0; run < runs; run++) {
    const fsdp_section *section = &program->sections[order[run]];
    for (int i = section->begin; i < section->end && !stale; i++) {
      const fsdp_instr *instr = &program->instrs[i];
      for (int pass = 0; pass < 2; pass++) { // an instruction reads before it writes
        for (int o = 0; o < instr->operand_count && !stale; o++) {
          const fsdp_operand *operand = &program->operands[instr->first_operand + o];
          if ((operand->access & (pass == 0 ? FSDP_READ : FSDP_WRITE)) == 0) continue;
          int32_t tag = pass == 1 && poisons(instr) ? 0 : lifetime_tag(program, operand->tensor, run, step);
          stale = !sweep(program, halves, operand, rank, tag, pass == 0);
        }
      }
    }
    step += section->kind == FSDP_SECTION_UPDATE;
  }
  for (int space = 0; space < FSDP_SPACE_COUNT; space++) free(halves[space]);
  return stale;
}

bool oracle_finds_stale_read(const fsdp_program *program) {
  for (int rank = 0; rank < shard_ranks(program); rank++)
    if (stale_on_rank(program, rank)) return true;
  return false;
}

bool oracle_accepts(const fsdp_program *program, oracle_ranks ranks) {
  if (oracle_finds_out_of_range(program) || oracle_finds_overlap(program) || oracle_finds_stale_read(program))
    return false;
  oracle *o = oracle_create(program, ranks);
  bool race = oracle_finds_race(o, NULL, NULL);
  oracle_destroy(o);
  return !race;
}
