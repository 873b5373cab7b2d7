#include "runtime/plan/mesh/boxes.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <string.h>

// ---- Boxes

typedef struct cutter {
  int dims;
  const int64_t *shape;
  fsdp_box *boxes;
  int count;
  int64_t offset; // of the next box
} cutter;

static int64_t product(const int64_t *shape, int begin, int end) {
  int64_t numel = 1;
  for (int d = begin; d < end; d++) numel *= shape[d];
  return numel;
}

// Adds `box`, whose dimensions up to `dim` are set; the later ones are whole.
static void add_box(cutter *c, fsdp_box box, int dim) {
  for (int d = dim + 1; d < c->dims; d++) box.start[d] = 0, box.extent[d] = c->shape[d];
  box.dims = c->dims;
  for (int d = c->dims - 1; d >= 0; d--)
    box.stride[d] = d == c->dims - 1 ? 1 : box.stride[d + 1] * c->shape[d + 1];
  box.offset = c->offset;
  c->offset += fsdp_box_numel(&box);
  c->boxes[c->count++] = box;
}

// Cuts elements [begin, end) of what lies behind the coordinates before `dim`, which `box` has.
static void cut(cutter *c, fsdp_box box, int dim, int64_t begin, int64_t end) {
  int64_t inner = product(c->shape, dim + 1, c->dims), first = begin / inner, whole_end = end / inner;
  if (begin == end) return;
  box.start[dim] = first, box.extent[dim] = 1;
  if (first == whole_end && begin % inner + end % inner > 0) { // inside one index
    cut(c, box, dim + 1, begin % inner, end % inner);
    return;
  }
  if (begin % inner > 0) {
    cut(c, box, dim + 1, begin % inner, inner);
    first++;
  }
  if (first < whole_end) {
    box.start[dim] = first, box.extent[dim] = whole_end - first;
    add_box(c, box, dim);
  }
  box.start[dim] = whole_end, box.extent[dim] = 1;
  if (end % inner > 0) cut(c, box, dim + 1, 0, end % inner);
}

int fsdp_boxes_cut(int dims, const int64_t *shape, int64_t first, int64_t numel, int64_t offset,
                   fsdp_box boxes[FSDP_BOXES_MAX]) {
  FSDP_CHECK(dims >= 1 && dims <= FSDP_MAX_DIMS, "a tensor of %d dimensions", dims);
  FSDP_CHECK(first >= 0 && numel >= 0 && first + numel <= product(shape, 0, dims), "elements %lld + %lld",
             (long long)first, (long long)numel);
  cutter c = {.dims = dims, .shape = shape, .boxes = boxes, .offset = offset};
  cut(&c, (fsdp_box){0}, 0, first, first + numel);
  FSDP_CHECK(c.count <= FSDP_BOXES_MAX && c.offset == offset + numel, "%d boxes of %lld elements, not %lld",
             c.count, (long long)(c.offset - offset), (long long)numel);
  return c.count;
}

int64_t fsdp_box_numel(const fsdp_box *box) {
  return product(box->extent, 0, box->dims);
}

int64_t fsdp_box_offset_of(const fsdp_box *box, const int64_t *at) {
  int64_t offset = box->offset;
  for (int d = 0; d < box->dims; d++) offset += (at[d] - box->start[d]) * box->stride[d];
  return offset;
}

bool fsdp_box_intersect(const fsdp_box *a, const fsdp_box *b, fsdp_box *shared) {
  *shared = *a;
  for (int d = 0; d < a->dims; d++) {
    int64_t end = fsdp_min_i64(a->start[d] + a->extent[d], b->start[d] + b->extent[d]);
    shared->start[d] = fsdp_max_i64(a->start[d], b->start[d]);
    shared->extent[d] = end - shared->start[d];
    if (shared->extent[d] <= 0) return false;
  }
  shared->offset = fsdp_box_offset_of(a, shared->start);
  return true;
}

// ---- Pieces

void fsdp_box_list_free(fsdp_box_list *list) {
  free(list->boxes);
  *list = (fsdp_box_list){0};
}

static void append(fsdp_box_list *list, const fsdp_box *box) {
  list->boxes = fsdp_grow(list->boxes, list->count + 1, &list->capacity, sizeof *list->boxes);
  list->boxes[list->count++] = *box;
}

// Moves a box in the piece's own coordinates to the indices of dimension 0 that the rank has. False: it has
// padding alone.
static bool move_outer(const fsdp_piece *piece, fsdp_box *box) {
  const fsdp_cut_outer outer = fsdp_cut_outer_of(piece->cut, piece->mesh, piece->rank, piece->shape[0]);
  if (!fsdp_cut_is_outer(piece->cut)) return true;
  box->extent[0] = fsdp_min_i64(box->extent[0], outer.real - box->start[0]);
  box->start[0] += outer.first;
  return box->extent[0] > 0;
}

// Appends what a box in the piece's own coordinates, but for dimension 0, is in the parameter's.
static void append_runs(const fsdp_piece *piece, const fsdp_box *local, fsdp_box_list *list) {
  int d = piece->cut->dim;
  int64_t begin = local->start[d], end = begin + local->extent[d];
  for (int64_t at = begin; at < end;) {
    fsdp_cut_run run = fsdp_cut_run_at(piece->cut, piece->mesh, piece->rank, at);
    int64_t count = fsdp_min_i64(run.count, end - at);
    if (run.index >= 0) {
      fsdp_box box = *local;
      box.start[d] = run.index;
      box.extent[d] = count;
      box.offset += (at - begin) * local->stride[d];
      append(list, &box);
    }
    at += count;
  }
}

void fsdp_piece_boxes(const fsdp_piece *piece, int64_t first, int64_t numel, int64_t offset,
                      fsdp_box_list *list) {
  int64_t shape[FSDP_MAX_DIMS];
  fsdp_box boxes[FSDP_BOXES_MAX];
  fsdp_cut_local_shape(piece->cut, piece->mesh, piece->dims, piece->shape, shape);
  int count = fsdp_boxes_cut(piece->dims, shape, first, numel, offset, boxes);
  for (int b = 0; b < count; b++) {
    boxes[b].param = piece->param;
    if (!move_outer(piece, &boxes[b])) continue;
    if (piece->cut->block_count > 0)
      append_runs(piece, &boxes[b], list);
    else
      append(list, &boxes[b]);
  }
}

void fsdp_units_boxes(const fsdp_units *units, const fsdp_graph *graph, const fsdp_unit_range *range,
                      fsdp_box_list *list) {
  const fsdp_unit *u = &units->units[range->unit];
  for (int i = 0; i < u->param_count; i++) {
    const fsdp_unit_param *slot = &units->params[u->first_param + i];
    const fsdp_param *param = &graph->params[slot->param];
    int64_t begin = fsdp_max_i64(slot->offset, range->first);
    int64_t end =
        fsdp_min_i64(slot->offset + fsdp_units_local_numel(graph, slot->param), range->first + range->numel);
    if (begin >= end) continue;
    fsdp_piece piece = {.param = slot->param,
                        .dims = param->dims,
                        .shape = param->shape,
                        .cut = &param->cut,
                        .mesh = &units->mesh,
                        .rank = range->rank};
    fsdp_piece_boxes(&piece, begin - slot->offset, end - begin, begin - range->first, list);
  }
}

// ---- Runs

typedef struct run_list {
  fsdp_shard_run *runs;
  int count, capacity;
} run_list;

static void add_run(run_list *list, fsdp_shard_run run) {
  list->runs = fsdp_grow(list->runs, list->count + 1, &list->capacity, sizeof *list->runs);
  list->runs[list->count++] = run;
}

// The runs of one box: it is dense from dimension `dense` on, and every index before that is a run.
static void add_box_runs(run_list *list, const fsdp_box *box, const int64_t *shape) {
  int dense = box->dims - 1;
  while (dense > 0 && box->extent[dense] == shape[dense] &&
         box->stride[dense - 1] == box->extent[dense] * box->stride[dense])
    dense--;
  int64_t numel = product(box->extent, dense, box->dims), rows = product(box->extent, 0, dense);
  for (int64_t row = 0; row < rows; row++) {
    int64_t at[FSDP_MAX_DIMS], left = row, index = 0;
    memcpy(at, box->start, sizeof at);
    for (int d = dense - 1; d >= 0; d--) {
      at[d] += left % box->extent[d];
      left /= box->extent[d];
    }
    for (int d = 0; d < box->dims; d++) index = index * shape[d] + at[d];
    add_run(list, (fsdp_shard_run){box->param, index, fsdp_box_offset_of(box, at), numel});
  }
}

static int compare_offsets(const void *a, const void *b) {
  int64_t x = ((const fsdp_shard_run *)a)->shard_offset, y = ((const fsdp_shard_run *)b)->shard_offset;
  return x < y ? -1 : x > y;
}

// Joins runs that are neighbours in both parameter and range.
static void join_runs(run_list *list) {
  int kept = 0;
  for (int i = 0; i < list->count; i++) {
    const fsdp_shard_run *run = &list->runs[i];
    fsdp_shard_run *last = kept > 0 ? &list->runs[kept - 1] : NULL;
    FSDP_CHECK(!last || last->shard_offset + last->numel <= run->shard_offset,
               "two runs have element %lld of a shard", (long long)run->shard_offset);
    if (last && last->param == run->param && last->element_index + last->numel == run->element_index &&
        last->shard_offset + last->numel == run->shard_offset)
      last->numel += run->numel;
    else
      list->runs[kept++] = *run;
  }
  list->count = kept;
}

fsdp_shard_run *fsdp_units_runs(const fsdp_units *units, const fsdp_graph *graph,
                                const fsdp_unit_range *range, int *count) {
  fsdp_box_list boxes = {0};
  run_list list = {0};
  fsdp_units_boxes(units, graph, range, &boxes);
  for (int b = 0; b < boxes.count; b++)
    add_box_runs(&list, &boxes.boxes[b], graph->params[boxes.boxes[b].param].shape);
  fsdp_box_list_free(&boxes);
  // Boxes beside each other in rows have runs that take turns.
  if (list.count > 0) qsort(list.runs, (size_t)list.count, sizeof *list.runs, compare_offsets);
  join_runs(&list);
  *count = list.count;
  return list.runs;
}

fsdp_shard_run *fsdp_units_shard_runs(const fsdp_units *units, const fsdp_graph *graph, int unit, int rank,
                                      int *count) {
  const fsdp_unit_range shard = {.unit = unit,
                                 .rank = rank,
                                 .first = fsdp_units_shard_begin(units, unit, rank),
                                 .numel = units->units[unit].shard_numel};
  return fsdp_units_runs(units, graph, &shard, count);
}
