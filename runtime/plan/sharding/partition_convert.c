// REDISTRIBUTE nodes between what a value is and what its reader wants.
#include "runtime/base/check.h"
#include "runtime/plan/mesh/cut.h"
#include "runtime/plan/sharding/partition_internal.h"

#include <stdio.h>
#include <string.h>

// What one conversion makes of rows and columns on a rank.
typedef struct change {
  fsdp_axis_set axes;
  fsdp_spread from, to;
} change;

// "attn_rows" of "attn" or "attn_columns".
static void name_converted(const char *source, fsdp_spread to, char out[FSDP_NAME_BYTES]) {
  static const char *const endings[] = {"_whole", "_rows", "_columns"};
  size_t length = strlen(source);
  for (int i = 0; i < 3; i++) {
    size_t tail = strlen(endings[i]);
    if (length > tail && strcmp(source + length - tail, endings[i]) == 0) length -= tail;
  }
  snprintf(out, FSDP_NAME_BYTES, "%.*s%s", (int)length, source, endings[to]);
}

// Columns of a value on a rank if `axes` cut them: whole items, one rank's after the other's.
static int64_t columns_on_rank(partitioner *p, int value, fsdp_axis_set axes) {
  const column_blocks *blocks = partition_spread(p, value)->blocks;
  if (!axes) return p->graph->values[value].shape[1];
  if (!blocks) return partition_share(p, p->graph->values[value].shape[1], axes);
  const fsdp_cut cut = partition_cut(p, blocks, axes);
  return fsdp_cut_local_size(&cut, p->mesh);
}

// Appends a node that makes a new value of `value`; it takes over the blocks of the columns.
static int append(partitioner *p, int value, change c, fsdp_spread gradient, const fsdp_node *reader) {
  fsdp_graph *g = p->graph;
  const fsdp_value source = g->values[value];
  value_spread spread = *partition_spread(p, value);
  spread.rows &= ~c.axes, spread.columns &= ~c.axes, spread.partial &= ~c.axes;
  if (c.to == FSDP_SPREAD_ROWS) spread.rows |= c.axes;
  if (c.to == FSDP_SPREAD_COLUMNS) spread.columns |= c.axes;
  int64_t ranks = fsdp_mesh_group_size(p->mesh, c.axes), columns = source.local[1], rows = source.local[0];
  if (c.from == FSDP_SPREAD_ROWS) rows *= ranks;
  if (c.to == FSDP_SPREAD_ROWS) rows /= ranks;
  if (c.from == FSDP_SPREAD_COLUMNS || c.to == FSDP_SPREAD_COLUMNS)
    columns = columns_on_rank(p, value, spread.columns);
  char name[FSDP_NAME_BYTES];
  name_converted(source.name, c.to, name);
  int made = fsdp_graph_value(g, FSDP_VALUE_ACTIVATION, source.dtype, source.module, name, 2, source.shape);
  g->values[made].local[0] = rows;
  g->values[made].local[1] = columns;
  g->values[made].local_numel = rows * columns;
  // A sum belongs to the layer that makes its summands.
  int block = c.from == FSDP_SPREAD_PARTIAL ? partition_spread(p, value)->block : reader->block;
  const fsdp_conversion conversion = {.axes = c.axes,
                                      .from = c.from,
                                      .to = c.to,
                                      .gradient = gradient,
                                      .columns = c.from == FSDP_SPREAD_COLUMNS ? columns : source.local[1]};
  fsdp_graph_redistribute(g, source.module, block, &conversion, value, made);
  if (c.to == FSDP_SPREAD_WHOLE) {
    g->values[made].regathered = spread.as_ruled;
  } else if (source.kept) { // it stands for the source from here on
    g->values[value].kept = false;
    g->values[made].kept = true;
  }
  spread.as_ruled = false;
  *partition_spread(p, made) = spread;
  return made;
}

// Sums a partial value where it lies.
static void sum_in_place(partitioner *p, int value, fsdp_axis_set axes) {
  const fsdp_conversion conversion = {.axes = axes,
                                      .from = FSDP_SPREAD_PARTIAL,
                                      .to = FSDP_SPREAD_WHOLE,
                                      .gradient = FSDP_SPREAD_WHOLE,
                                      .columns = p->graph->values[value].local[1]};
  fsdp_graph_redistribute(p->graph, p->graph->values[value].module, partition_spread(p, value)->block,
                          &conversion, value, value);
  partition_spread(p, value)->partial &= ~axes;
}

// Lets the backward sum the gradient of a value that all ranks hold, once for this reader and later ones: the
// summands are there before it, and what earlier readers add comes behind it. What an earlier reader lets it
// sum is summed there.
static void share(partitioner *p, int value, fsdp_axis_set axes, const fsdp_node *reader) {
  value_spread *spread = partition_spread(p, value);
  axes &= ~spread->shared;
  if (!axes) return;
  spread->shared |= axes;
  const fsdp_conversion conversion = {.axes = axes,
                                      .from = FSDP_SPREAD_WHOLE,
                                      .to = FSDP_SPREAD_WHOLE,
                                      .gradient = FSDP_SPREAD_PARTIAL,
                                      .columns = p->graph->values[value].local[1]};
  fsdp_graph_redistribute(p->graph, p->graph->values[value].module, reader->block, &conversion, value, -1);
}

// Columns that are not a run of equal parts of whole columns are neither put together nor cut.
static bool is_run(partitioner *p, int value, fsdp_axis_set axes) {
  const column_blocks *blocks = partition_spread(p, value)->blocks;
  if (!blocks || blocks->count != 1) return !blocks;
  return partition_cut(p, blocks, axes).item_axes == 0;
}

// Who places what a module makes: the line of its output or its weight.
static const char *place_of(const partitioner *p, int module) {
  if (p->specs->outputs[module][0].place[0]) return p->specs->outputs[module][0].place;
  for (int i = 0; i < p->graph->param_count; i++)
    if (p->graph->params[i].module == module && p->specs->params[i].place[0])
      return p->specs->params[i].place;
  return "--sharding";
}

static int refuse(partitioner *p, int value, fsdp_axis_set axes, const char *how) {
  char names[FSDP_MESH_TEXT_BYTES], path[FSDP_NAME_BYTES];
  const fsdp_mesh whole = fsdp_factored_whole(p->mesh);
  fsdp_graph_module_path(p->graph, p->graph->values[value].module, path);
  fsdp_fail(p->error, FSDP_ERR_INPUT,
            "%s: the output of %s %s: %s are several outputs side by side, which are cut only where they are "
            "made; over %s cut the weights that make it and the one that reads it, or neither",
            place_of(p, p->graph->values[value].module), path, how, p->graph->values[value].name,
            fsdp_mesh_print_axes(&whole, fsdp_factored_source(p->axes, axes), names));
  return -1;
}

// What a reader that all ranks repeat adds to a gradient must not be summed with what earlier ones do.
static int refuse_order(partitioner *p, int value, fsdp_axis_set axes) {
  char names[FSDP_MESH_TEXT_BYTES], path[FSDP_NAME_BYTES];
  const fsdp_mesh whole = fsdp_factored_whole(p->mesh);
  fsdp_graph_module_path(p->graph, p->graph->values[value].module, path);
  fsdp_fail(
      p->error, FSDP_ERR_INPUT,
      "%s: the output of %s is read by an op that axis %s cuts, and then by one that it does not cut: cut "
      "the weights of both over it, or of the later one alone",
      place_of(p, p->graph->values[value].module), path,
      fsdp_mesh_print_axes(&whole, fsdp_factored_source(p->axes, axes), names));
  return -1;
}

// ---- One dimension: rows, or columns

// What it goes through: the axes that cut it now, kept all the while, and in the end. Axes cut a dimension in
// the mesh's order, the first one outermost. So what changes is gathered from the innermost axis on, and cut
// from the outermost: then each step's parts lie one after the other.
typedef struct passage {
  fsdp_spread dim; // FSDP_SPREAD_ROWS or FSDP_SPREAD_COLUMNS
  fsdp_axis_set has, kept, wanted;
  fsdp_axis_set settled; // of those wanted, the ones that sums are scattered over
} passage;

static bool is_columns(const passage *d) {
  return d->dim == FSDP_SPREAD_COLUMNS;
}

// The axes of `axes` outside the innermost one of them.
static fsdp_axis_set without_innermost(fsdp_axis_set axes) {
  fsdp_axis_set outer = 0;
  for (fsdp_axis_set left = axes; left & (left - 1); left &= left - 1) outer |= left & -left;
  return outer;
}

// The axes that cut both from the outermost on.
static fsdp_axis_set outermost_alike(fsdp_axis_set a, fsdp_axis_set b) {
  fsdp_axis_set differ = a ^ b;
  return a & b & ((differ & -differ) - 1); // all of them if none differs
}

// Whether each rank over `outer` holds what the ranks inside it do over `axes`. Rows are divided evenly;
// parts of columns are rounded up, so that their padding may lie elsewhere.
static bool nests(partitioner *p, int value, const passage *d, fsdp_axis_set outer, fsdp_axis_set axes) {
  int64_t inside = fsdp_mesh_group_size(p->mesh, axes & ~outer);
  return !is_columns(d) || !outer || outer == axes ||
         columns_on_rank(p, value, outer) == inside * columns_on_rank(p, value, axes);
}

// Whether axes of `axes` may come, from the outermost on, behind `outer` one by one.
static bool nests_by_axis(partitioner *p, int value, const passage *d, fsdp_axis_set outer,
                          fsdp_axis_set axes) {
  bool all = nests(p, value, d, outer, axes);
  for (fsdp_axis_set less = without_innermost(axes); all && (less & ~outer); less = without_innermost(less))
    all = nests(p, value, d, less, axes);
  return all;
}

static passage passage_of(partitioner *p, int value, fsdp_spread dim, fsdp_axis_set has,
                          fsdp_axis_set wanted) {
  passage d = {.dim = dim, .has = has, .wanted = wanted};
  d.kept = outermost_alike(has, wanted);
  while (!nests(p, value, &d, d.kept, has) || !nests(p, value, &d, d.kept, wanted))
    d.kept = without_innermost(d.kept);
  return d;
}

// Sums end where the reader wants them, if only cuts of this dimension are left to be made and none of their
// axes cuts the other one.
static void settle(partitioner *p, int value, passage *d, fsdp_axis_set partial, fsdp_axis_set other) {
  fsdp_axis_set rest = d->wanted & ~d->has;
  bool mixed = rest & ~partial;
  if (d->kept != d->has || rest & other) return;
  if (!mixed || nests_by_axis(p, value, d, d->has, d->wanted)) d->settled = rest & partial;
}

// Gathers all but what is kept. Takes from *partial, axes over which readers make summands of the gradient,
// those over which they are then scattered.
static int gather(partitioner *p, int value, const passage *d, fsdp_axis_set *partial,
                  const fsdp_node *reader) {
  fsdp_axis_set left = d->has & ~d->kept;
  bool by_axis = nests_by_axis(p, value, d, d->kept, d->has);
  while (left) {
    fsdp_axis_set run = by_axis ? left & ~without_innermost(left) : left;
    bool sums = by_axis && run & *partial;
    for (fsdp_axis_set rest = left & ~run; rest; rest = without_innermost(rest)) {
      fsdp_axis_set next = rest & ~without_innermost(rest);
      if ((next & *partial) != (sums ? next : 0)) break;
      run |= next;
    }
    value = append(p, value, (change){run, d->dim, FSDP_SPREAD_WHOLE},
                   sums ? FSDP_SPREAD_PARTIAL : FSDP_SPREAD_WHOLE, reader);
    if (sums) *partial &= ~run;
    left &= ~run;
  }
  return value;
}

// Cuts what is not cut yet as it is wanted, and scatters sums that settle.
static int cut(partitioner *p, int value, const passage *d, const fsdp_node *reader) {
  value_spread has = *partition_spread(p, value);
  fsdp_axis_set left = d->wanted & ~(is_columns(d) ? has.columns : has.rows);
  while (left) {
    bool sums = left & -left & has.partial;
    fsdp_axis_set run = 0;
    for (fsdp_axis_set rest = left; rest && !(rest & -rest & has.partial) == !sums; rest &= rest - 1)
      run |= rest & -rest;
    value = append(p, value, (change){run, sums ? FSDP_SPREAD_PARTIAL : FSDP_SPREAD_WHOLE, d->dim}, d->dim,
                   reader);
    left &= ~run;
  }
  return value;
}

// How a value whose columns are not a run would change, for a message; NULL: its columns stay.
static const char *columns_change(const passage *columns, fsdp_axis_set partial) {
  if (columns->has == columns->wanted) return NULL;
  if (columns->has & ~columns->kept)
    return "is cut in its last dimension, and what reads it wants it otherwise";
  return columns->wanted & partial ? "is a sum, and wanted cut in its last dimension"
                                   : "is whole, and wanted cut in its last dimension";
}

static int convert(partitioner *p, int value, fsdp_value_axes wanted, fsdp_axis_set gradient_partial,
                   const fsdp_node *reader) {
  const value_spread has = *partition_spread(p, value);
  passage rows = passage_of(p, value, FSDP_SPREAD_ROWS, has.rows, wanted.rows);
  passage columns = passage_of(p, value, FSDP_SPREAD_COLUMNS, has.columns, wanted.columns);
  const char *how = columns_change(&columns, has.partial);
  fsdp_axis_set changed = (has.columns | wanted.columns) & ~columns.kept;
  if (how && !is_run(p, value, changed)) return refuse(p, value, changed, how);
  settle(p, value, &rows, has.partial, has.columns);
  settle(p, value, &columns, has.partial, has.rows);
  fsdp_axis_set sums = has.partial & ~rows.settled & ~columns.settled;
  if (sums) sum_in_place(p, value, sums);
  if (rows.settled) value = cut(p, value, &rows, reader);
  if (columns.settled) value = cut(p, value, &columns, reader);
  // What is cut and wanted otherwise is gathered, then what is whole and wanted cut is sliced.
  value = gather(p, value, &rows, &gradient_partial, reader);
  value = gather(p, value, &columns, &gradient_partial, reader);
  value = cut(p, value, &rows, reader);
  value = cut(p, value, &columns, reader);
  const fsdp_axis_set whole = partition_spread(p, value)->shared & ~gradient_partial;
  if (whole && p->graph->values[value].dtype != FSDP_VALUE_I32) return refuse_order(p, value, whole);
  if (gradient_partial) share(p, value, gradient_partial, reader);
  const value_spread *made = partition_spread(p, value);
  FSDP_CHECK(made->rows == wanted.rows && made->columns == wanted.columns && !made->partial,
             "%s does not lie as %s wants it", p->graph->values[value].name, fsdp_op_name(reader->kind));
  return value;
}

// ---- Rows of the ranks that share experts

// Puts the rows of all ranks over `axes` together, one rank's after the other's.
static int collect(partitioner *p, int value, fsdp_axis_set axes, bool sums, const fsdp_node *reader) {
  const fsdp_spread gradient = sums ? FSDP_SPREAD_PARTIAL : FSDP_SPREAD_WHOLE;
  return append(p, value, (change){axes, FSDP_SPREAD_ROWS, FSDP_SPREAD_WHOLE}, gradient, reader);
}

// Takes a rank's own rows, or its sum of them.
static int distribute(partitioner *p, int value, fsdp_axis_set axes, const fsdp_node *reader) {
  const bool sums = partition_spread(p, value)->partial & axes;
  return append(p, value, (change){axes, sums ? FSDP_SPREAD_PARTIAL : FSDP_SPREAD_WHOLE, FSDP_SPREAD_ROWS},
                FSDP_SPREAD_ROWS, reader);
}

// Ranks that share experts have sequences of their own: whatever the mesh's order, over this axis rows are
// cut outside the others.
int partition_convert(partitioner *p, int value, fsdp_value_axes wanted, fsdp_axis_set gradient_partial,
                      const fsdp_node *reader) {
  const fsdp_axis_set dispatch = p->decisions->dispatch, wants = wanted.rows & dispatch;
  const fsdp_axis_set has = partition_spread(p, value)->rows & dispatch;
  if (wants & ~has) value = distribute(p, value, dispatch, reader);
  const int source = value;
  partition_spread(p, source)->rows &= ~dispatch;
  wanted.rows &= ~dispatch;
  value = convert(p, value, wanted, gradient_partial & ~dispatch, reader);
  if (value < 0) return value;
  if (has | wants) {
    partition_spread(p, source)->rows |= dispatch;
    partition_spread(p, value)->rows |= dispatch;
  }
  return has & ~wants ? collect(p, value, dispatch, gradient_partial & dispatch, reader) : value;
}
