// What reads find. The list is walked over the seam order; a tree keeps whose data each byte holds.
//
// For one rank that is exact. For all ranks at once the tree holds a byte's tag only if the byte carries it
// on every rank. A write that moves with the rank does not show that, so it is remembered as a moving write:
// on every rank r, the bytes [begin, end) + offset(r) carry the tag. A later write of a different tag
// anywhere in its hull ends that. A read is proved by the tree, or by moving writes that move exactly as it
// does and cover it.
#include "runtime/base/check.h"
#include "runtime/plan/proof/tag_tree.h"
#include "runtime/plan/proof/verify_internal.h"

typedef struct moving_write {
  const fsdp_operand *operand;
  verify_range first; // on the rank with every coordinate 0
  verify_range hull;
  int tag;
} moving_write;

// One walk over the list: of the rank at `place`, or (NULL) of all ranks at once.
typedef struct data_walk {
  const verifier *v;
  const verify_place *place;
  fsdp_tag_tree data;
  moving_write *moving;
  int moving_count, moving_capacity;
} data_walk;

static bool moves(const verifier *v, const fsdp_operand *operand) {
  bool found = false;
  for (int axis = 0; axis < VERIFY_AXES_MAX; axis++) found |= verify_stride(v, operand, axis) != 0;
  return found;
}

static bool move_alike(const verifier *v, const fsdp_operand *a, const fsdp_operand *b) {
  for (int axis = 0; axis < VERIFY_AXES_MAX; axis++)
    if (verify_stride(v, a, axis) != verify_stride(v, b, axis)) return false;
  return true;
}

static verify_range range_of(const data_walk *w, const fsdp_operand *operand) {
  return w->place ? verify_operand_range(w->v, operand, w->place) : verify_operand_hull(w->v, operand);
}

// Data of one lifetime of a tensor: of a run of its section, of a step, or of all time.
static int data_tag(const verifier *v, int tensor, int run) {
  fsdp_lifetime lifetime = v->program->tensors[tensor].lifetime;
  return tensor * VERIFY_RUNS_MAX + (lifetime == FSDP_LIVE_SECTION ? run
                                     : lifetime == FSDP_LIVE_STEP  ? v->steps[run]
                                                                   : 0);
}

static data_walk walk_create(const verifier *v, const verify_place *place) {
  const fsdp_program *program = v->program;
  data_walk w = {.v = v, .place = place};
  int count = 0;
  int64_t *cuts =
      fsdp_alloc(((size_t)program->operand_count + (size_t)program->tensor_count + 1) * 2 * sizeof *cuts);
  cuts[count++] = 0;
  for (int o = 0; o < program->operand_count; o++) {
    verify_range range = range_of(&w, &program->operands[o]);
    cuts[count++] = range.begin;
    cuts[count++] = range.end;
  }
  for (int t = 0; t < program->tensor_count; t++) {
    if (program->tensors[t].lifetime != FSDP_LIVE_ALWAYS) continue;
    cuts[count++] = verify_tensor_range(v, t).begin;
    cuts[count++] = verify_tensor_range(v, t).end;
  }
  w.data = fsdp_tag_tree_create(fsdp_cuts_create(cuts, count));
  for (int t = 0; t < program->tensor_count; t++) {
    verify_range range = verify_tensor_range(v, t);
    if (program->tensors[t].lifetime == FSDP_LIVE_ALWAYS)
      fsdp_tag_tree_set(&w.data, range.begin, range.end, data_tag(v, t, 0));
  }
  return w;
}

static void walk_destroy(data_walk *w) {
  fsdp_tag_tree_destroy(&w->data);
  free(w->moving);
}

// ---- Writes

static bool inside(verify_range inner, verify_range outer) {
  return outer.begin <= inner.begin && inner.end <= outer.end;
}

// Forgets the moving writes that `write` ends or makes redundant.
static void forget_moving(data_walk *w, const moving_write *write, bool is_moving) {
  int kept = 0;
  for (int i = 0; i < w->moving_count; i++) {
    const moving_write *m = &w->moving[i];
    bool meets = m->hull.begin < write->hull.end && write->hull.begin < m->hull.end;
    bool ended = meets && (m->tag != write->tag || write->tag == FSDP_NOBODY);
    bool known = is_moving ? inside(m->first, write->first) && move_alike(w->v, m->operand, write->operand)
                           : inside(m->hull, write->hull);
    if (!ended && !known) w->moving[kept++] = *m;
  }
  w->moving_count = kept;
}

static void add_moving(data_walk *w, const moving_write *write) {
  w->moving = fsdp_grow(w->moving, w->moving_count + 1, &w->moving_capacity, sizeof *w->moving);
  w->moving[w->moving_count++] = *write;
}

static void record_write(data_walk *w, const fsdp_operand *operand, int tag) {
  verify_range range = range_of(w, operand);
  if (operand->size_bytes == 0) return;
  if (w->place) {
    fsdp_tag_tree_set(&w->data, range.begin, range.end, tag);
    return;
  }
  moving_write write = {operand, verify_operand_range(w->v, operand, &(verify_place){{0}}), range, tag};
  bool is_moving = moves(w->v, operand);
  forget_moving(w, &write, is_moving);
  if (!is_moving) {
    fsdp_tag_tree_set(&w->data, range.begin, range.end, tag);
    return;
  }
  int64_t where;
  int found;
  fsdp_tag_tree_keep(&w->data, range.begin, range.end, tag);
  bool known = fsdp_tag_tree_all(&w->data, range.begin, range.end, tag, &where, &found);
  if (!known && tag != FSDP_NOBODY) add_moving(w, &write);
}

// ---- Reads

// Whether moving writes of the tag that move as the operand does cover it, on every rank.
static bool moving_writes_cover(const data_walk *w, const fsdp_operand *operand, int tag) {
  verify_range first = verify_operand_range(w->v, operand, &(verify_place){{0}});
  for (bool grown = true; grown && first.begin < first.end;) {
    grown = false;
    for (int i = 0; i < w->moving_count; i++) {
      const moving_write *m = &w->moving[i];
      if (m->tag != tag || m->first.begin > first.begin || m->first.end <= first.begin) continue;
      if (!move_alike(w->v, m->operand, operand)) continue;
      first.begin = m->first.end;
      grown = true;
    }
  }
  return first.begin >= first.end;
}

static int rank_at(const verifier *v, const verify_place *place) {
  int rank = 0;
  for (int axis = 0; axis < VERIFY_AXES_MAX; axis++)
    rank = rank * verify_axis_size(v, axis) + place->coordinate[axis];
  return rank;
}

static bool reject_stale(const data_walk *w, int position, const fsdp_operand *operand, int64_t where,
                         int other) {
  const verifier *v = w->v;
  const fsdp_tensor *tensor = &v->program->tensors[operand->tensor];
  char who[VERIFY_WHO_BYTES];
  where -= v->space_base[tensor->space];
  fsdp_violation stale = {FSDP_VIOLATION_STALE_READ, position, -1, operand->tensor, other, where, ""};
  if (!w->place) {
    stale.kind = FSDP_VIOLATION_UNPROVED;
    return verify_reject(v, stale,
                         "%s reads %s with an offset that moves with the rank as no write of its data does: "
                         "not proved for more than %d ranks",
                         verify_describe(v, position, who), tensor->name, VERIFY_EXACT_RANKS);
  }
  return verify_reject(v, stale, "%s reads %s at address %lld (rank %d), where %s%s lies",
                       verify_describe(v, position, who), tensor->name, (long long)where,
                       rank_at(v, w->place), other == operand->tensor ? "an earlier lifetime's " : "",
                       other < 0 ? "nothing written" : v->program->tensors[other].name);
}

static bool check_read(const data_walk *w, int position, const fsdp_operand *operand, int run) {
  int tag = data_tag(w->v, operand->tensor, run), found = FSDP_NOBODY;
  verify_range range = range_of(w, operand);
  int64_t where;
  if (operand->size_bytes == 0) return true;
  if (fsdp_tag_tree_all(&w->data, range.begin, range.end, tag, &where, &found)) return true;
  if (!w->place && moving_writes_cover(w, operand, tag)) return true;
  return reject_stale(w, position, operand, where, found < 0 ? -1 : found / VERIFY_RUNS_MAX);
}

// ---- Walks

// An instruction reads before it writes.
static bool walk_instr(data_walk *w, int position, int run) {
  const fsdp_program *program = w->v->program;
  const fsdp_instr *instr = &program->instrs[position];
  const fsdp_operand *operands = &program->operands[instr->first_operand];
  for (int o = 0; o < instr->operand_count; o++)
    if ((operands[o].access & FSDP_READ) && !check_read(w, position, &operands[o], run)) return false;
  for (int o = 0; o < instr->operand_count; o++)
    if (operands[o].access & FSDP_WRITE)
      record_write(w, &operands[o],
                   fsdp_instr_is_poison(instr) ? FSDP_NOBODY : data_tag(w->v, operands[o].tensor, run));
  return true;
}

static bool check_walk(const verifier *v, const verify_place *place) {
  data_walk w = walk_create(v, place);
  bool sound = true;
  for (int run = 0; run < v->run_count && sound; run++) {
    const fsdp_section *section = &v->program->sections[v->order[run]];
    for (int i = section->begin; i < section->end && sound; i++) sound = walk_instr(&w, i, run);
  }
  walk_destroy(&w);
  return sound;
}

// The number of places of the mesh at which operands lie differently; size[axis] is 1 if none moves along it.
static int64_t count_places(const verifier *v, int size[VERIFY_AXES_MAX]) {
  int64_t count = 1;
  for (int axis = 0; axis < VERIFY_AXES_MAX; axis++) {
    bool matters = false;
    for (int o = 0; o < v->program->operand_count && !matters; o++)
      matters = verify_stride(v, &v->program->operands[o], axis) != 0;
    size[axis] = matters ? verify_axis_size(v, axis) : 1;
    count *= size[axis];
  }
  return count;
}

static verify_place place_of(int64_t index, const int size[VERIFY_AXES_MAX]) {
  verify_place place;
  for (int axis = VERIFY_AXES_MAX - 1; axis >= 0; axis--) {
    place.coordinate[axis] = (int)(index % size[axis]);
    index /= size[axis];
  }
  return place;
}

bool verify_data(const verifier *v) {
  if (check_walk(v, NULL)) return true;
  // Not proved for all ranks at once: few are looked at one by one, of many the first and the last, for a
  // message that names a rank.
  int size[VERIFY_AXES_MAX];
  int64_t count = count_places(v, size);
  fsdp_violation unproved = *v->violation;
  bool few = count <= VERIFY_EXACT_RANKS;
  for (int64_t i = 0; i < count; i = few || i == count - 1 ? i + 1 : count - 1) {
    verify_place place = place_of(i, size);
    if (!check_walk(v, &place)) return false;
  }
  if (!few) *v->violation = unproved;
  return few;
}
