// Vector clocks over the streams, and a segment tree of the accesses that later ones must come after.
#include "runtime/base/check.h"
#include "runtime/plan/proof/tag_tree.h"
#include "runtime/plan/proof/verify_internal.h"

#include <string.h>

#define MIXED (-2)

// One issue of an instruction: its number on its stream, and how many of each stream come before it.
typedef struct occurrence {
  int position, stream, number;
  int before[FSDP_STREAM_COUNT];
} occurrence;

// The accesses to a node's bytes that later ones must come after; a MIXED writer refers to the children.
typedef struct access_node {
  int writer;
  int readers[FSDP_STREAM_COUNT]; // since the write, the last of each stream
} access_node;

typedef struct race_check {
  const verifier *v;
  fsdp_cuts cuts;
  access_node *nodes;
  int leaf_count;
  occurrence *occurrences;
  int *segment_begin, *segment_end; // by operand
} race_check;

static bool comes_before(const race_check *r, int earlier, int later) {
  if (earlier == FSDP_NOBODY || earlier == later) return true;
  const occurrence *a = &r->occurrences[earlier], *b = &r->occurrences[later];
  return a->stream == b->stream || b->before[a->stream] > a->number;
}

// The occurrence that `current` should come after and does not, or FSDP_NOBODY; then the node remembers
// `current`.
static int visit_uniform(race_check *r, access_node *node, int current, bool write) {
  if (!comes_before(r, node->writer, current)) return node->writer;
  if (!write) {
    node->readers[r->occurrences[current].stream] = current;
    return FSDP_NOBODY;
  }
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    if (!comes_before(r, node->readers[s], current)) return node->readers[s];
    node->readers[s] = FSDP_NOBODY;
  }
  node->writer = current;
  return FSDP_NOBODY;
}

static int visit(race_check *r, int index, int first, int count, const int range[2], int current,
                 bool write) {
  access_node *node = &r->nodes[index];
  bool covered = range[0] <= first && first + count <= range[1];
  if (covered && node->writer != MIXED) return visit_uniform(r, node, current, write);
  if (node->writer != MIXED) {
    r->nodes[2 * index] = r->nodes[2 * index + 1] = *node;
    node->writer = MIXED;
  }
  int half = count / 2, middle = first + half, conflict = FSDP_NOBODY;
  if (range[0] < middle) conflict = visit(r, 2 * index, first, half, range, current, write);
  if (conflict == FSDP_NOBODY && range[1] > middle)
    conflict = visit(r, 2 * index + 1, middle, half, range, current, write);
  // A write makes one of what it covers: every older access comes before it.
  if (covered && write && conflict == FSDP_NOBODY) *node = r->nodes[2 * index];
  return conflict;
}

static race_check race_check_create(const verifier *v) {
  const fsdp_program *program = v->program;
  int count = program->operand_count, events = 0;
  int64_t *cuts = fsdp_alloc(((size_t)count * 2 + 1) * sizeof *cuts);
  for (int o = 0; o < count; o++) {
    verify_range hull = verify_operand_hull(v, &program->operands[o]);
    cuts[2 * o] = hull.begin;
    cuts[2 * o + 1] = hull.end;
  }
  cuts[2 * count] = 0;
  race_check r = {.v = v, .cuts = fsdp_cuts_create(cuts, 2 * count + 1), .leaf_count = 1};
  while (r.leaf_count < r.cuts.count) r.leaf_count *= 2;
  r.nodes = fsdp_alloc((size_t)r.leaf_count * 2 * sizeof *r.nodes);
  r.nodes[1].writer = FSDP_NOBODY;
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) r.nodes[1].readers[s] = FSDP_NOBODY;
  r.segment_begin = fsdp_alloc((size_t)count * sizeof *r.segment_begin);
  r.segment_end = fsdp_alloc((size_t)count * sizeof *r.segment_end);
  for (int o = 0; o < count; o++) {
    verify_range hull = verify_operand_hull(v, &program->operands[o]);
    r.segment_begin[o] = fsdp_cuts_segment(&r.cuts, hull.begin);
    r.segment_end[o] = fsdp_cuts_segment(&r.cuts, hull.end);
  }
  for (int run = 0; run < v->run_count; run++)
    events += program->sections[v->order[run]].end - program->sections[v->order[run]].begin;
  r.occurrences = fsdp_alloc((size_t)events * sizeof *r.occurrences);
  return r;
}

static void race_check_destroy(race_check *r) {
  free(r->cuts.at);
  free(r->nodes);
  free(r->occurrences);
  free(r->segment_begin);
  free(r->segment_end);
}

// The occurrence that follows `previous` on its stream (FSDP_NOBODY: none) and what it waits for.
static occurrence occur(const race_check *r, int position, int previous, const int *recent) {
  const fsdp_instr *instr = &r->v->program->instrs[position];
  occurrence result = {.position = position, .stream = (int)instr->stream};
  if (previous != FSDP_NOBODY) {
    memcpy(result.before, r->occurrences[previous].before, sizeof result.before);
    result.number = r->occurrences[previous].number + 1;
  }
  result.before[result.stream] = result.number;
  for (int w = 0; w < instr->wait_count; w++) {
    int awaited = recent[r->v->program->waits[instr->first_wait + w].position];
    if (awaited == FSDP_NOBODY) continue;
    const occurrence *other = &r->occurrences[awaited];
    for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
      int before = s == other->stream ? other->number + 1 : other->before[s];
      if (before > result.before[s]) result.before[s] = before;
    }
  }
  return result;
}

// A tensor that `position` accesses in segments [begin, end), for the message.
static int tensor_touched(const race_check *r, int position, int begin, int end) {
  const fsdp_instr *instr = &r->v->program->instrs[position];
  for (int o = instr->first_operand; o < instr->first_operand + instr->operand_count; o++)
    if (r->segment_begin[o] < end && begin < r->segment_end[o]) return r->v->program->operands[o].tensor;
  return -1;
}

static bool report_race(const race_check *r, int position, int operand, int conflict) {
  const fsdp_program *program = r->v->program;
  int other = r->occurrences[conflict].position, tensor = program->operands[operand].tensor;
  int other_tensor = tensor_touched(r, other, r->segment_begin[operand], r->segment_end[operand]);
  int64_t address = r->cuts.at[r->segment_begin[operand]] - r->v->space_base[program->tensors[tensor].space];
  char who[VERIFY_WHO_BYTES], whom[VERIFY_WHO_BYTES];
  fsdp_violation race = {FSDP_VIOLATION_RACE, position, other, tensor, other_tensor, address, ""};
  return verify_reject(r->v, race, "%s (%s) and %s (%s) are not ordered",
                       verify_describe(r->v, position, who), program->tensors[tensor].name,
                       verify_describe(r->v, other, whom),
                       other_tensor < 0 ? "?" : program->tensors[other_tensor].name);
}

bool verify_order(const verifier *v) {
  const fsdp_program *program = v->program;
  race_check r = race_check_create(v);
  int *recent = fsdp_alloc((size_t)program->instr_count * sizeof *recent);
  int stream_recent[FSDP_STREAM_COUNT], current = 0;
  bool sound = true;
  for (int i = 0; i < program->instr_count; i++) recent[i] = FSDP_NOBODY;
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) stream_recent[s] = FSDP_NOBODY;
  for (int run = 0; run < v->run_count && sound; run++) {
    const fsdp_section *section = &program->sections[v->order[run]];
    for (int i = section->begin; i < section->end && sound; i++, current++) {
      const fsdp_instr *instr = &program->instrs[i];
      r.occurrences[current] = occur(&r, i, stream_recent[instr->stream], recent);
      recent[i] = stream_recent[instr->stream] = current;
      for (int o = instr->first_operand; o < instr->first_operand + instr->operand_count && sound; o++) {
        int range[2] = {r.segment_begin[o], r.segment_end[o]};
        const fsdp_operand *operand = &program->operands[o];
        if (operand->size_bytes == 0) continue;
        int conflict = visit(&r, 1, 0, r.leaf_count, range, current, (operand->access & FSDP_WRITE) != 0);
        sound = conflict == FSDP_NOBODY || report_race(&r, i, o, conflict);
      }
    }
  }
  free(recent);
  race_check_destroy(&r);
  return sound;
}
