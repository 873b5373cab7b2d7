#include "runtime/plan/proof/verify.h"

#include "runtime/base/check.h"

#include <stdarg.h>
#include <string.h>

#define NOBODY   (-1)
#define MIXED    (-2)
#define RUNS_MAX 32 // of the seam order, so also of lifetimes of one tensor

typedef struct verifier {
  const fsdp_program *program;
  fsdp_violation *violation;                       // the caller's or a dummy
  int order[RUNS_MAX], steps[RUNS_MAX], run_count; // section and step of each run
  int64_t space_base[FSDP_SPACE_COUNT];            // both arenas on one axis
} verifier;

// The axis cut at every coordinate that matters: segment i is [cuts[i], cuts[i + 1]).
typedef struct axis {
  int64_t *cuts;
  int cut_count;
} axis;

static bool is_poison(const fsdp_instr *instr) {
  return instr->kind == FSDP_INSTR_OP && instr->op == FSDP_OP_POISON;
}
static bool reads(const fsdp_operand *operand) {
  return (operand->access & FSDP_READ) != 0;
}
static bool writes(const fsdp_operand *operand) {
  return (operand->access & FSDP_WRITE) != 0;
}

// ---- The axis

static int compare_cuts(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? -1 : x > y;
}

// Takes over `cuts`.
static axis axis_create(int64_t *cuts, int count) {
  qsort(cuts, (size_t)count, sizeof *cuts, compare_cuts);
  int kept = 0; // in place: a cut never moves up
  for (int i = 0; i < count; i++)
    if (kept == 0 || cuts[kept - 1] != cuts[i]) cuts[kept++] = cuts[i];
  return (axis){cuts, kept};
}

static int axis_segment(const axis *a, int64_t coordinate) {
  int low = 0, size = a->cut_count;
  while (size > 1) {
    int half = size / 2;
    if (a->cuts[low + half] <= coordinate) low += half;
    size -= half;
  }
  return low;
}

// What `operand` covers on `rank`.
static void operand_range(const verifier *v, const fsdp_operand *operand, int rank, int64_t *begin,
                          int64_t *end) {
  const fsdp_tensor *tensor = &v->program->tensors[operand->tensor];
  *begin = v->space_base[tensor->space] + tensor->address + operand->offset_bytes +
           operand->rank_stride_bytes * rank;
  *end = *begin + operand->size_bytes;
}

static int last_rank(const verifier *v) {
  return v->program->mesh.size[FSDP_AXIS_FSDP] - 1;
}

// What `operand` covers on any rank.
static void operand_extent(const verifier *v, const fsdp_operand *operand, int64_t *begin, int64_t *end) {
  int64_t other_begin, other_end;
  operand_range(v, operand, 0, begin, end);
  operand_range(v, operand, last_rank(v), &other_begin, &other_end);
  if (other_begin < *begin) *begin = other_begin;
  if (other_end > *end) *end = other_end;
}

#define WHO_BYTES 96

// "linear on stream compute at 12"
static const char *describe(const verifier *v, int position, char out[WHO_BYTES]) {
  const fsdp_instr *instr = &v->program->instrs[position];
  snprintf(out, WHO_BYTES, "%s on stream %s at %d",
           instr->kind == FSDP_INSTR_OP ? fsdp_op_name(instr->op) : fsdp_instr_kind_name(instr->kind),
           fsdp_stream_name(instr->stream), position);
  return out;
}

// Reports what was found. Returns false.
__attribute__((format(printf, 3, 4))) static bool reject(const verifier *v, fsdp_violation found,
                                                         const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  *v->violation = found;
  vsnprintf(v->violation->message, sizeof v->violation->message, format, arguments);
  va_end(arguments);
  return false;
}

// ---- Tags: which data every byte holds

// A segment tree; a node is one tag throughout or MIXED.
typedef struct tag_tree {
  axis axis;
  int *tags;
  int leaf_count;
} tag_tree;

static tag_tree tag_tree_create(axis cuts) {
  tag_tree tree = {.axis = cuts, .leaf_count = 1};
  while (tree.leaf_count < cuts.cut_count) tree.leaf_count *= 2;
  tree.tags = fsdp_alloc((size_t)tree.leaf_count * 2 * sizeof *tree.tags);
  for (int i = 0; i < tree.leaf_count * 2; i++) tree.tags[i] = NOBODY;
  return tree;
}

static void tag_tree_destroy(tag_tree *tree) {
  free(tree->axis.cuts);
  free(tree->tags);
}

static void set_tags(tag_tree *tree, int node, int first, int count, int begin, int end, int tag) {
  if (begin <= first && first + count <= end) {
    tree->tags[node] = tag;
    return;
  }
  int half = count / 2, middle = first + half;
  if (tree->tags[node] == tag) return;
  if (tree->tags[node] != MIXED) tree->tags[2 * node] = tree->tags[2 * node + 1] = tree->tags[node];
  tree->tags[node] = MIXED;
  if (begin < middle) set_tags(tree, 2 * node, first, half, begin, end, tag);
  if (end > middle) set_tags(tree, 2 * node + 1, middle, half, begin, end, tag);
  if (tree->tags[2 * node] == tree->tags[2 * node + 1]) tree->tags[node] = tree->tags[2 * node];
}

// The first segment of [begin, end) whose tag is not `tag` (its own in *found), or -1.
static int find_other_tag(const tag_tree *tree, int node, int first, int count, int begin, int end, int tag,
                          int *found) {
  if (tree->tags[node] == tag) return -1;
  if (tree->tags[node] != MIXED) {
    *found = tree->tags[node];
    return begin > first ? begin : first;
  }
  int half = count / 2, middle = first + half, segment = -1;
  if (begin < middle) segment = find_other_tag(tree, 2 * node, first, half, begin, end, tag, found);
  if (segment < 0 && end > middle)
    segment = find_other_tag(tree, 2 * node + 1, middle, half, begin, end, tag, found);
  return segment;
}

static void tag_tree_set(tag_tree *tree, int64_t begin, int64_t end, int tag) {
  if (begin == end) return;
  set_tags(tree, 1, 0, tree->leaf_count, axis_segment(&tree->axis, begin), axis_segment(&tree->axis, end),
           tag);
}

static bool tag_tree_all(const tag_tree *tree, int64_t begin, int64_t end, int tag, int64_t *where,
                         int *found) {
  if (begin == end) return true;
  int segment = find_other_tag(tree, 1, 0, tree->leaf_count, axis_segment(&tree->axis, begin),
                               axis_segment(&tree->axis, end), tag, found);
  if (segment >= 0) *where = tree->axis.cuts[segment];
  return segment < 0;
}

// ---- Ranges and lifetimes

static bool check_operand(const verifier *v, int position, const fsdp_operand *operand) {
  const fsdp_program *program = v->program;
  char who[WHO_BYTES];
  fsdp_violation found = {FSDP_VIOLATION_OUT_OF_RANGE, position, -1, operand->tensor, -1, 0, ""};
  if (operand->tensor < 0 || operand->tensor >= program->tensor_count)
    return reject(v, found, "%s names tensor %d of %d", describe(v, position, who), operand->tensor,
                  program->tensor_count);
  const fsdp_tensor *tensor = &program->tensors[operand->tensor];
  int64_t begin, end, base = v->space_base[tensor->space] + tensor->address;
  operand_extent(v, operand, &begin, &end);
  found.address = tensor->address + (begin - base);
  if (operand->size_bytes < 0 || begin < base || end > base + tensor->bytes)
    return reject(v, found, "%s touches bytes %lld to %lld of %s, which has %lld", describe(v, position, who),
                  (long long)(begin - base), (long long)(end - base), tensor->name, (long long)tensor->bytes);
  if (!is_poison(&program->instrs[position]) && (position < tensor->begin || position > tensor->end))
    return reject(v, found, "%s touches %s, which lives from %d to %d", describe(v, position, who),
                  tensor->name, tensor->begin, tensor->end);
  return true;
}

static bool check_ranges(const verifier *v) {
  const fsdp_program *program = v->program;
  for (int t = 0; t < program->tensor_count; t++) {
    const fsdp_tensor *tensor = &program->tensors[t];
    if (tensor->address >= 0 && tensor->bytes <= program->arena_bytes[tensor->space] - tensor->address)
      continue;
    fsdp_violation found = {FSDP_VIOLATION_OUT_OF_RANGE, -1, -1, t, -1, tensor->address, ""};
    return reject(v, found, "%s lies at %lld with %lld bytes, the arena has %lld", tensor->name,
                  (long long)tensor->address, (long long)tensor->bytes,
                  (long long)program->arena_bytes[tensor->space]);
  }
  for (int i = 0; i < program->instr_count; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    for (int o = 0; o < instr->operand_count; o++)
      if (!check_operand(v, i, &program->operands[instr->first_operand + o])) return false;
    for (int w = 0; w < instr->wait_count; w++) {
      int awaited = program->waits[instr->first_wait + w].position;
      fsdp_violation found = {FSDP_VIOLATION_OUT_OF_RANGE, i, awaited, -1, -1, 0, ""};
      if (awaited < 0 || awaited >= program->instr_count)
        return reject(v, found, "instruction %d waits for %d, which does not exist", i, awaited);
    }
  }
  return true;
}

// Per position, the tensors that begin (or end) there, as linked lists.
typedef struct boundary {
  int *first, *next;
} boundary;

static boundary boundary_create(const fsdp_program *program, bool of_ends) {
  boundary s = {fsdp_alloc((size_t)(program->instr_count + 1) * sizeof *s.first),
                fsdp_alloc((size_t)program->tensor_count * sizeof *s.next)};
  for (int i = 0; i <= program->instr_count; i++) s.first[i] = -1;
  for (int t = 0; t < program->tensor_count; t++) {
    const fsdp_tensor *tensor = &program->tensors[t];
    if (tensor->end < tensor->begin) continue;
    int position = of_ends ? tensor->end : tensor->begin;
    FSDP_CHECK(position >= 0 && position < program->instr_count, "tensor %s lives from %d to %d",
               tensor->name, tensor->begin, tensor->end);
    s.next[t] = s.first[position];
    s.first[position] = t;
  }
  return s;
}

// A sweep over the list: every byte belongs to one live tensor at most.
static bool check_overlap(const verifier *v) {
  const fsdp_program *program = v->program;
  int64_t *cuts = fsdp_alloc(((size_t)program->tensor_count * 2 + 1) * sizeof *cuts);
  for (int t = 0; t < program->tensor_count; t++) {
    cuts[2 * t] = v->space_base[program->tensors[t].space] + program->tensors[t].address;
    cuts[2 * t + 1] = cuts[2 * t] + program->tensors[t].bytes;
  }
  cuts[2 * program->tensor_count] = 0;
  tag_tree owners = tag_tree_create(axis_create(cuts, program->tensor_count * 2 + 1));
  boundary begins = boundary_create(program, false), ends = boundary_create(program, true);
  bool sound = true;
  for (int i = 0; i < program->instr_count && sound; i++) {
    for (int t = begins.first[i]; t >= 0 && sound; t = begins.next[t]) {
      const fsdp_tensor *tensor = &program->tensors[t];
      int64_t base = v->space_base[tensor->space], begin = base + tensor->address, where;
      int other = NOBODY;
      sound = tag_tree_all(&owners, begin, begin + tensor->bytes, NOBODY, &where, &other);
      if (!sound)
        reject(v, (fsdp_violation){FSDP_VIOLATION_OVERLAP, i, -1, t, other, where - base, ""},
               "%s and %s live at one time at %s address %lld", tensor->name, program->tensors[other].name,
               tensor->space == FSDP_SPACE_HOST ? "host" : "device", (long long)(where - base));
      tag_tree_set(&owners, begin, begin + tensor->bytes, t);
    }
    for (int t = ends.first[i]; t >= 0; t = ends.next[t]) {
      int64_t begin = v->space_base[program->tensors[t].space] + program->tensors[t].address;
      tag_tree_set(&owners, begin, begin + program->tensors[t].bytes, NOBODY);
    }
  }
  free(begins.first);
  free(begins.next);
  free(ends.first);
  free(ends.next);
  tag_tree_destroy(&owners);
  return sound;
}

// ---- What reads find

// Data of one lifetime of a tensor: of a run of its section, of a step, or of all time.
static int data_tag(const verifier *v, int tensor, int run) {
  fsdp_lifetime lifetime = v->program->tensors[tensor].lifetime;
  return tensor * RUNS_MAX + (lifetime == FSDP_LIVE_SECTION ? run
                              : lifetime == FSDP_LIVE_STEP  ? v->steps[run]
                                                            : 0);
}

static bool check_reads(const verifier *v, const tag_tree *data, int position, int run, int rank) {
  const fsdp_instr *instr = &v->program->instrs[position];
  for (int o = 0; o < instr->operand_count; o++) {
    const fsdp_operand *operand = &v->program->operands[instr->first_operand + o];
    int64_t begin, end, where;
    int found = NOBODY;
    if (!reads(operand)) continue;
    operand_range(v, operand, rank, &begin, &end);
    if (tag_tree_all(data, begin, end, data_tag(v, operand->tensor, run), &where, &found)) continue;
    const fsdp_tensor *tensor = &v->program->tensors[operand->tensor];
    int other = found < 0 ? -1 : found / RUNS_MAX;
    where -= v->space_base[tensor->space];
    char who[WHO_BYTES];
    fsdp_violation stale = {FSDP_VIOLATION_STALE_READ, position, -1, operand->tensor, other, where, ""};
    return reject(v, stale, "%s reads %s at address %lld (rank %d), where %s%s lies",
                  describe(v, position, who), tensor->name, (long long)where, rank,
                  other == operand->tensor ? "an earlier lifetime's " : "",
                  other < 0 ? "nothing written" : v->program->tensors[other].name);
  }
  return true;
}

static bool check_data(const verifier *v, int rank) {
  const fsdp_program *program = v->program;
  int count = 0;
  int64_t *cuts =
      fsdp_alloc(((size_t)program->operand_count + (size_t)program->tensor_count + 1) * 2 * sizeof *cuts);
  cuts[count++] = 0;
  for (int o = 0; o < program->operand_count; o++, count += 2)
    operand_range(v, &program->operands[o], rank, &cuts[count], &cuts[count + 1]);
  for (int t = 0; t < program->tensor_count; t++) {
    if (program->tensors[t].lifetime != FSDP_LIVE_ALWAYS) continue;
    cuts[count++] = v->space_base[program->tensors[t].space] + program->tensors[t].address;
    cuts[count] = cuts[count - 1] + program->tensors[t].bytes;
    count++;
  }
  tag_tree data = tag_tree_create(axis_create(cuts, count));
  for (int t = 0; t < program->tensor_count; t++) {
    if (program->tensors[t].lifetime != FSDP_LIVE_ALWAYS) continue;
    int64_t begin = v->space_base[program->tensors[t].space] + program->tensors[t].address;
    tag_tree_set(&data, begin, begin + program->tensors[t].bytes, data_tag(v, t, 0));
  }
  bool sound = true;
  for (int run = 0; run < v->run_count && sound; run++) {
    const fsdp_section *section = &program->sections[v->order[run]];
    for (int i = section->begin; i < section->end && sound; i++) {
      const fsdp_instr *instr = &program->instrs[i];
      sound = check_reads(v, &data, i, run, rank);
      for (int o = 0; o < instr->operand_count; o++) {
        const fsdp_operand *operand = &program->operands[instr->first_operand + o];
        int64_t begin, end;
        if (!writes(operand)) continue;
        operand_range(v, operand, rank, &begin, &end);
        tag_tree_set(&data, begin, end, is_poison(instr) ? NOBODY : data_tag(v, operand->tensor, run));
      }
    }
  }
  tag_tree_destroy(&data);
  return sound;
}

// ---- Order

// An instruction issued once: the how-manieth of its stream, and how many of each stream come before it.
typedef struct occurrence {
  int position, stream, number;
  int before[FSDP_STREAM_COUNT];
} occurrence;

// The accesses to a node's bytes that later ones must come after; MIXED writer: the children know.
typedef struct access_node {
  int writer;
  int readers[FSDP_STREAM_COUNT]; // since the write, the last of each stream
} access_node;

typedef struct race_check {
  const verifier *v;
  axis axis;
  access_node *nodes;
  int leaf_count;
  occurrence *occurrences;
  int *segment_begin, *segment_end; // by operand
} race_check;

static bool comes_before(const race_check *r, int earlier, int later) {
  if (earlier == NOBODY || earlier == later) return true;
  const occurrence *a = &r->occurrences[earlier], *b = &r->occurrences[later];
  return a->stream == b->stream || b->before[a->stream] > a->number;
}

// The occurrence that `current` should come after and does not, or NOBODY; then the node remembers `current`.
static int visit_uniform(race_check *r, access_node *node, int current, bool write) {
  if (!comes_before(r, node->writer, current)) return node->writer;
  if (!write) {
    node->readers[r->occurrences[current].stream] = current;
    return NOBODY;
  }
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    if (!comes_before(r, node->readers[s], current)) return node->readers[s];
    node->readers[s] = NOBODY;
  }
  node->writer = current;
  return NOBODY;
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
  int half = count / 2, middle = first + half, conflict = NOBODY;
  if (range[0] < middle) conflict = visit(r, 2 * index, first, half, range, current, write);
  if (conflict == NOBODY && range[1] > middle)
    conflict = visit(r, 2 * index + 1, middle, half, range, current, write);
  // A write makes one of what it covers: every older access comes before it.
  if (covered && write && conflict == NOBODY) *node = r->nodes[2 * index];
  return conflict;
}

static race_check race_check_create(const verifier *v) {
  const fsdp_program *program = v->program;
  int count = program->operand_count, events = 0;
  int64_t *cuts = fsdp_alloc(((size_t)count * 2 + 1) * sizeof *cuts);
  for (int o = 0; o < count; o++) operand_extent(v, &program->operands[o], &cuts[2 * o], &cuts[2 * o + 1]);
  cuts[2 * count] = 0;
  race_check r = {.v = v, .axis = axis_create(cuts, 2 * count + 1), .leaf_count = 1};
  while (r.leaf_count < r.axis.cut_count) r.leaf_count *= 2;
  r.nodes = fsdp_alloc((size_t)r.leaf_count * 2 * sizeof *r.nodes);
  r.nodes[1].writer = NOBODY;
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) r.nodes[1].readers[s] = NOBODY;
  r.segment_begin = fsdp_alloc((size_t)count * sizeof *r.segment_begin);
  r.segment_end = fsdp_alloc((size_t)count * sizeof *r.segment_end);
  for (int o = 0; o < count; o++) {
    int64_t begin, end;
    operand_extent(v, &program->operands[o], &begin, &end);
    r.segment_begin[o] = axis_segment(&r.axis, begin);
    r.segment_end[o] = axis_segment(&r.axis, end);
  }
  for (int run = 0; run < v->run_count; run++)
    events += program->sections[v->order[run]].end - program->sections[v->order[run]].begin;
  r.occurrences = fsdp_alloc((size_t)events * sizeof *r.occurrences);
  return r;
}

static void race_check_destroy(race_check *r) {
  free(r->axis.cuts);
  free(r->nodes);
  free(r->occurrences);
  free(r->segment_begin);
  free(r->segment_end);
}

// The occurrence that follows `previous` on its stream (NOBODY: none) and what it waits for.
static occurrence occur(const race_check *r, int position, int previous, const int *recent) {
  const fsdp_instr *instr = &r->v->program->instrs[position];
  occurrence result = {.position = position, .stream = (int)instr->stream};
  if (previous != NOBODY) {
    memcpy(result.before, r->occurrences[previous].before, sizeof result.before);
    result.number = r->occurrences[previous].number + 1;
  }
  result.before[result.stream] = result.number;
  for (int w = 0; w < instr->wait_count; w++) {
    int awaited = recent[r->v->program->waits[instr->first_wait + w].position];
    if (awaited == NOBODY) continue;
    const occurrence *other = &r->occurrences[awaited];
    for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
      int before = s == other->stream ? other->number + 1 : other->before[s];
      if (before > result.before[s]) result.before[s] = before;
    }
  }
  return result;
}

// A tensor that `position` touches in segments [begin, end), for the message.
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
  int64_t address =
      r->axis.cuts[r->segment_begin[operand]] - r->v->space_base[program->tensors[tensor].space];
  char who[WHO_BYTES], whom[WHO_BYTES];
  fsdp_violation race = {FSDP_VIOLATION_RACE, position, other, tensor, other_tensor, address, ""};
  return reject(r->v, race, "%s (%s) and %s (%s) are not ordered", describe(r->v, position, who),
                program->tensors[tensor].name, describe(r->v, other, whom),
                other_tensor < 0 ? "?" : program->tensors[other_tensor].name);
}

static bool check_order(const verifier *v) {
  const fsdp_program *program = v->program;
  race_check r = race_check_create(v);
  int *recent = fsdp_alloc((size_t)program->instr_count * sizeof *recent);
  int stream_recent[FSDP_STREAM_COUNT], current = 0;
  bool sound = true;
  for (int i = 0; i < program->instr_count; i++) recent[i] = NOBODY;
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) stream_recent[s] = NOBODY;
  for (int run = 0; run < v->run_count && sound; run++) {
    const fsdp_section *section = &program->sections[v->order[run]];
    for (int i = section->begin; i < section->end && sound; i++, current++) {
      const fsdp_instr *instr = &program->instrs[i];
      r.occurrences[current] = occur(&r, i, stream_recent[instr->stream], recent);
      recent[i] = stream_recent[instr->stream] = current;
      for (int o = instr->first_operand; o < instr->first_operand + instr->operand_count && sound; o++) {
        int range[2] = {r.segment_begin[o], r.segment_end[o]};
        if (range[0] == range[1]) continue;
        int conflict = visit(&r, 1, 0, r.leaf_count, range, current, writes(&program->operands[o]));
        sound = conflict == NOBODY || report_race(&r, i, o, conflict);
      }
    }
  }
  free(recent);
  race_check_destroy(&r);
  return sound;
}

// ---- All of it

bool fsdp_verify(const fsdp_program *program, fsdp_violation *violation) {
  fsdp_violation ignored;
  verifier v = {.program = program, .violation = violation ? violation : &ignored};
  v.space_base[FSDP_SPACE_HOST] = program->arena_bytes[FSDP_SPACE_DEVICE];
  v.run_count = fsdp_program_seam_order(program, v.order);
  for (int run = 0, step = 0; run < v.run_count; run++) {
    v.steps[run] = step;
    step += program->sections[v.order[run]].kind == FSDP_SECTION_UPDATE;
  }
  if (!check_ranges(&v) || !check_overlap(&v) || !check_order(&v)) return false;
  bool moves = false;
  for (int o = 0; o < program->operand_count; o++)
    moves = moves || program->operands[o].rank_stride_bytes != 0;
  int last = last_rank(&v);
  for (int rank = 0; rank <= last; rank = rank == 1 && last > 3 ? last : rank + 1) {
    if (!check_data(&v, rank)) return false;
    if (!moves) break;
  }
  *v.violation = (fsdp_violation){FSDP_VIOLATION_NONE, -1, -1, -1, -1, 0, ""};
  return true;
}
