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

// ---- Ranks

#define RANKS_MAX 64

static int rank_count(const fsdp_program *program) {
  int ranks = 1;
  for (int a = 0; a < program->mesh.count; a++) ranks *= program->mesh.axes[a].size;
  FSDP_CHECK(ranks <= RANKS_MAX, "%d ranks", ranks);
  return ranks;
}

static int64_t first_byte(const fsdp_program *program, const fsdp_operand *operand, int rank) {
  int64_t first = program->tensors[operand->tensor].address + operand->offset.base;
  for (int a = program->mesh.count - 1; a >= 0; a--) {
    first += rank % program->mesh.axes[a].size * operand->offset.stride[a];
    rank /= program->mesh.axes[a].size;
  }
  return first;
}

static void byte_range(const fsdp_program *program, const fsdp_operand *operand, int rank, int64_t *low,
                       int64_t *high) {
  *low = first_byte(program, operand, rank);
  *high = *low + operand->size_bytes;
}

// Whether two ranks belong to one group of an instruction.
static bool same_group(const fsdp_program *program, const fsdp_instr *instr, int rank, int other) {
  for (int a = program->mesh.count - 1; a >= 0; a--) {
    int size = program->mesh.axes[a].size;
    if (rank % size != other % size && !(program->comms[instr->comm].axes >> a & 1)) return false;
    rank /= size, other /= size;
  }
  return true;
}

// ---- Order of sections

static bool has_section(const fsdp_program *program, fsdp_section_kind kind, int *out) {
  for (int s = 0; s < program->section_count; s++) {
    if (program->sections[s].kind != kind) continue;
    *out = s;
    return true;
  }
  return false;
}

// One step as it runs.
static int one_step(const fsdp_program *program, int *out) {
  int count = 0, section;
  if (has_section(program, FSDP_SECTION_ONLY, &section)) out[count++] = section;
  if (has_section(program, FSDP_SECTION_FIRST, &section)) out[count++] = section;
  if (has_section(program, FSDP_SECTION_MIDDLE, &section))
    for (int i = 2; i < program->micro_batches && i < 6; i++) out[count++] = section;
  if (has_section(program, FSDP_SECTION_LAST, &section)) out[count++] = section;
  if (has_section(program, FSDP_SECTION_UPDATE, &section)) out[count++] = section;
  return count;
}

#define RUNS_MAX 512

// Steps with every sequence of up to two sections that lie beside steps between two of them.
static int run_order(const fsdp_program *program, int out[RUNS_MAX]) {
  int beside[4], kinds = 0, count = one_step(program, out);
  kinds += has_section(program, FSDP_SECTION_EVALUATION, &beside[kinds]);
  kinds += has_section(program, FSDP_SECTION_CHECK, &beside[kinds]);
  kinds += has_section(program, FSDP_SECTION_SNAPSHOT, &beside[kinds]);
  kinds += has_section(program, FSDP_SECTION_EXCHANGE, &beside[kinds]);
  count += one_step(program, out + count);
  for (int a = 0; a < kinds; a++) {
    out[count++] = beside[a];
    count += one_step(program, out + count);
    for (int b = 0; b < kinds; b++) {
      out[count++] = beside[a];
      out[count++] = beside[b];
      count += one_step(program, out + count);
    }
  }
  return count;
}

// ---- Races

static bool ranges_meet(const fsdp_program *program, const fsdp_operand *x, const fsdp_operand *y,
                        oracle_ranks ranks) {
  int64_t low_x = INT64_MAX, high_x = INT64_MIN, low_y = INT64_MAX, high_y = INT64_MIN;
  if (x->size_bytes == 0 || y->size_bytes == 0) return false;
  for (int rank = 0; rank < rank_count(program); rank++) {
    int64_t a, b, c, d;
    byte_range(program, x, rank, &a, &b);
    byte_range(program, y, rank, &c, &d);
    if (ranks == ORACLE_EACH_RANK && a < d && c < b) return true;
    low_x = a < low_x ? a : low_x, high_x = b > high_x ? b : high_x;
    low_y = c < low_y ? c : low_y, high_y = d > high_y ? d : high_y;
  }
  return ranks == ORACLE_HULL && low_x < high_y && low_y < high_x;
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
  int order[RUNS_MAX], sections = run_order(program, order), n = program->instr_count;
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

// ---- Ranges and lifetimes

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
      for (int rank = 0; rank < rank_count(program); rank++) {
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

// ---- What reads find

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
  return 1 + tensor * 256 +
         (lifetime == FSDP_LIVE_ALWAYS ? 0
          : lifetime == FSDP_LIVE_STEP ? 1 + step
                                       : 32 + run);
}

static bool stale_on_rank(const fsdp_program *program, int rank) {
  int order[RUNS_MAX], runs = run_order(program, order), step = 0;
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
  for (int rank = 0; rank < rank_count(program); rank++)
    if (stale_on_rank(program, rank)) return true;
  return false;
}

// ---- Collectives and copies

static bool is_collective(const fsdp_instr *instr) {
  return instr->kind == FSDP_INSTR_ALL_GATHER || instr->kind == FSDP_INSTR_REDUCE_SCATTER ||
         instr->kind == FSDP_INSTR_ALL_REDUCE;
}

// Where the rank is among the members of its group; *members: how many they are.
static int place_in_group(const fsdp_program *program, const fsdp_instr *instr, int rank, int *members) {
  int before = 0;
  *members = 0;
  for (int other = 0; other < rank_count(program); other++) {
    if (!same_group(program, instr, rank, other)) continue;
    *members += 1;
    before += other < rank;
  }
  return before;
}

// An all-gather's or reduce-scatter's part against the whole: sizes against the members that there are, and,
// if they meet anywhere between the least and the greatest distance, the part against slots on every rank.
static bool slots_are_bad(const fsdp_program *program, const fsdp_instr *instr) {
  const fsdp_operand *operands = &program->operands[instr->first_operand];
  bool gathers = instr->kind == FSDP_INSTR_ALL_GATHER, own = true, some = true;
  const fsdp_operand *part = gathers ? &operands[0] : &operands[1];
  const fsdp_operand *whole = gathers ? &operands[1] : &operands[0];
  int64_t least = INT64_MAX, greatest = INT64_MIN;
  if (operands[0].access != FSDP_READ || operands[1].access != FSDP_WRITE) return true;
  for (int rank = 0; rank < rank_count(program); rank++) {
    int members, place = place_in_group(program, instr, rank, &members);
    int64_t apart = first_byte(program, part, rank) - first_byte(program, whole, rank);
    if (whole->size_bytes != members * part->size_bytes) return true;
    if (part->size_bytes == 0) continue;
    least = apart < least ? apart : least;
    greatest = apart > greatest ? apart : greatest;
    own = own && apart == place * part->size_bytes;
    some = some && apart % part->size_bytes == 0;
  }
  bool meet = part->tensor == whole->tensor && least < whole->size_bytes && greatest > -part->size_bytes;
  return meet && !(gathers ? own : some);
}

static bool operands_are_bad(const fsdp_program *program, const fsdp_instr *instr) {
  const fsdp_operand *operands = &program->operands[instr->first_operand];
  bool copies = instr->kind == FSDP_INSTR_H2D || instr->kind == FSDP_INSTR_D2H;
  if (!is_collective(instr) && !copies) return false;
  if (instr->operand_count != (instr->kind == FSDP_INSTR_ALL_REDUCE ? 1 : 2)) return true;
  for (int o = 0; o < instr->operand_count; o++) {
    fsdp_space space = program->tensors[operands[o].tensor].space;
    bool from_host = instr->kind == FSDP_INSTR_H2D && o == 0;
    bool to_host = instr->kind == FSDP_INSTR_D2H && o == 1;
    if (space != (from_host || to_host ? FSDP_SPACE_HOST : FSDP_SPACE_DEVICE)) return true;
    if (operands[o].dtype != operands[0].dtype) return true;
    if (operands[o].size_bytes % (operands[o].dtype == FSDP_BF16 ? 2 : 4) != 0) return true;
  }
  if (copies)
    return operands[0].access != FSDP_READ || operands[1].access != FSDP_WRITE ||
           operands[0].size_bytes != operands[1].size_bytes;
  if (instr->kind == FSDP_INSTR_ALL_REDUCE) return operands[0].access != FSDP_UPDATE;
  return slots_are_bad(program, instr);
}

bool oracle_finds_bad_operands(const fsdp_program *program) {
  for (int i = 0; i < program->instr_count; i++)
    if (operands_are_bad(program, &program->instrs[i])) return true;
  return false;
}

bool oracle_finds_shared_communicator(const fsdp_program *program) {
  for (int i = 0; i < program->instr_count; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    if (is_collective(instr) && program->comms[instr->comm].stream != instr->stream) return true;
  }
  return false;
}

bool oracle_accepts(const fsdp_program *program, oracle_ranks ranks) {
  if (oracle_finds_out_of_range(program) || oracle_finds_bad_operands(program) ||
      oracle_finds_shared_communicator(program) || oracle_finds_overlap(program) ||
      oracle_finds_stale_read(program))
    return false;
  oracle *o = oracle_create(program, ranks);
  bool race = oracle_finds_race(o, NULL, NULL);
  oracle_destroy(o);
  return !race;
}
