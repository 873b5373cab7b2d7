// REDISTRIBUTE nodes between what a value is and what its reader wants.
#include "runtime/base/check.h"
#include "runtime/plan/layout/cut.h"
#include "runtime/plan/layout/partition_internal.h"

#include <stdio.h>
#include <string.h>

value_spread *partition_spread(partitioner *p, int value) {
  if (value >= p->spread_capacity) {
    int capacity = 2 * value + 64;
    p->spread = fsdp_realloc(p->spread, (size_t)capacity * sizeof *p->spread);
    for (int v = p->spread_capacity; v < capacity; v++) p->spread[v] = (value_spread){0};
    p->spread_capacity = capacity;
  }
  return &p->spread[value];
}

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

// Columns of a whole value on one rank of those that cut it: of whole items, one rank's after the other's.
static int64_t columns_on_rank(partitioner *p, int value, fsdp_axis_set axes) {
  const column_blocks *blocks = partition_spread(p, value)->blocks;
  fsdp_cut cut;
  if (!blocks) return partition_share(p, p->graph->values[value].shape[1], axes);
  partition_cut(p, blocks, axes, &cut);
  return fsdp_cut_local_size(&cut, p->mesh);
}

// Appends a node that makes a new value of `value`; it takes over the blocks of the columns.
static int append(partitioner *p, int value, change c, fsdp_spread gradient, const fsdp_node *reader) {
  fsdp_graph *g = p->graph;
  const fsdp_value source = g->values[value];
  int64_t ranks = fsdp_mesh_group_size(p->mesh, c.axes), whole = source.shape[1], columns = source.local[1];
  int64_t rows = source.local[0];
  if (c.from == FSDP_SPREAD_ROWS) rows *= ranks;
  if (c.to == FSDP_SPREAD_ROWS) rows /= ranks;
  if (c.from == FSDP_SPREAD_COLUMNS) columns = whole;
  if (c.to == FSDP_SPREAD_COLUMNS) columns = columns_on_rank(p, value, c.axes);
  char name[FSDP_NAME_BYTES];
  name_converted(source.name, c.to, name);
  int made = fsdp_graph_value(g, FSDP_VALUE_ACTIVATION, source.dtype, source.module, name, 2, source.shape);
  g->values[made].local[0] = rows;
  g->values[made].local[1] = columns;
  g->values[made].local_numel = rows * columns;
  // A sum belongs to the layer that makes its summands.
  int block = c.from == FSDP_SPREAD_PARTIAL ? partition_spread(p, value)->block : reader->block;
  fsdp_node *n = fsdp_graph_forward_node(g, FSDP_OP_REDISTRIBUTE, source.module, block);
  n->conversion =
      (fsdp_conversion){.axes = c.axes, .from = c.from, .to = c.to, .gradient = gradient, .columns = whole};
  fsdp_node_operand_add(n, value, FSDP_READ);
  fsdp_node_operand_add(n, made, FSDP_WRITE);
  value_spread spread = *partition_spread(p, value);
  if (c.to == FSDP_SPREAD_WHOLE) {
    g->values[made].regathered = spread.as_ruled;
  } else if (source.kept) { // it stands for the source from here on
    g->values[value].kept = false;
    g->values[made].kept = true;
  }
  spread.as_ruled = false;
  spread.rows &= ~c.axes, spread.columns &= ~c.axes, spread.partial &= ~c.axes;
  if (c.to == FSDP_SPREAD_ROWS) spread.rows |= c.axes;
  if (c.to == FSDP_SPREAD_COLUMNS) spread.columns |= c.axes;
  *partition_spread(p, made) = spread;
  return made;
}

// Sums a partial value where it lies.
static void sum_in_place(partitioner *p, int value, fsdp_axis_set axes) {
  fsdp_node *n = fsdp_graph_forward_node(p->graph, FSDP_OP_REDISTRIBUTE, p->graph->values[value].module,
                                         partition_spread(p, value)->block);
  n->conversion = (fsdp_conversion){.axes = axes,
                                    .from = FSDP_SPREAD_PARTIAL,
                                    .to = FSDP_SPREAD_WHOLE,
                                    .gradient = FSDP_SPREAD_WHOLE,
                                    .columns = p->graph->values[value].shape[1]};
  fsdp_node_operand_add(n, value, FSDP_UPDATE);
  partition_spread(p, value)->partial &= ~axes;
}

// Lets the backward sum the gradient of a value that all ranks hold.
static void share(partitioner *p, int value, fsdp_axis_set axes, const fsdp_node *reader) {
  fsdp_node *n =
      fsdp_graph_forward_node(p->graph, FSDP_OP_REDISTRIBUTE, p->graph->values[value].module, reader->block);
  n->conversion = (fsdp_conversion){.axes = axes,
                                    .from = FSDP_SPREAD_WHOLE,
                                    .to = FSDP_SPREAD_WHOLE,
                                    .gradient = FSDP_SPREAD_PARTIAL,
                                    .columns = p->graph->values[value].shape[1]};
  fsdp_node_operand_add(n, value, FSDP_READ);
}

// Columns that are not a run of equal parts of whole columns are neither put together nor cut.
static bool is_run(partitioner *p, int value, fsdp_axis_set axes) {
  const column_blocks *blocks = partition_spread(p, value)->blocks;
  fsdp_cut cut;
  if (!blocks || blocks->count != 1) return !blocks;
  partition_cut(p, blocks, axes, &cut);
  return cut.item_axes == 0;
}

// Who places what a module makes: the line of its output or its weight.
static const char *place_of(const partitioner *p, int module) {
  if (p->specs->modules[module].place[0]) return p->specs->modules[module].place;
  for (int i = 0; i < p->graph->param_count; i++)
    if (p->graph->params[i].module == module && p->specs->params[i].place[0])
      return p->specs->params[i].place;
  return "--sharding";
}

static int refuse(partitioner *p, int value, fsdp_axis_set axes, const char *how) {
  char names[FSDP_MESH_TEXT_BYTES], path[FSDP_NAME_BYTES];
  fsdp_graph_module_path(p->graph, p->graph->values[value].module, path);
  fsdp_fail(p->error, FSDP_ERR_INPUT,
            "%s: the output of %s %s: %s are several outputs side by side, which are cut only where they are "
            "made; over %s cut the weights that make it and the one that reads it, or neither",
            place_of(p, p->graph->values[value].module), path, how, p->graph->values[value].name,
            fsdp_mesh_print_axes(p->mesh, axes, names));
  return -1;
}

int partition_convert(partitioner *p, int value, value_spread wanted, fsdp_axis_set gradient_partial,
                      const fsdp_node *reader) {
  const fsdp_spread whole = FSDP_SPREAD_WHOLE, partial = FSDP_SPREAD_PARTIAL;
  value_spread has = *partition_spread(p, value);
  // Sums end where the reader wants them.
  fsdp_axis_set rows = has.partial & wanted.rows, columns = has.partial & wanted.columns;
  fsdp_axis_set sums = has.partial & ~rows & ~columns;
  if (columns && !is_run(p, value, columns))
    return refuse(p, value, columns, "is a sum, and wanted cut in its last dimension");
  if (sums) sum_in_place(p, value, sums);
  if (rows) value = append(p, value, (change){rows, partial, FSDP_SPREAD_ROWS}, FSDP_SPREAD_ROWS, reader);
  if (columns)
    value = append(p, value, (change){columns, partial, FSDP_SPREAD_COLUMNS}, FSDP_SPREAD_COLUMNS, reader);
  // What is cut and wanted whole is gathered.
  rows = has.rows & ~wanted.rows, columns = has.columns & ~wanted.columns;
  if (columns && !is_run(p, value, columns))
    return refuse(p, value, columns, "is cut in its last dimension, and what reads it wants it whole");
  fsdp_axis_set gathered = rows | columns;
  if (rows)
    value = append(p, value, (change){rows, FSDP_SPREAD_ROWS, whole},
                   rows & gradient_partial ? partial : whole, reader);
  if (columns)
    value = append(p, value, (change){columns, FSDP_SPREAD_COLUMNS, whole},
                   columns & gradient_partial ? partial : whole, reader);
  // What is whole and wanted cut is sliced.
  has = *partition_spread(p, value);
  rows = wanted.rows & ~has.rows, columns = wanted.columns & ~has.columns;
  if (columns && !is_run(p, value, columns))
    return refuse(p, value, columns, "is whole, and wanted cut in its last dimension");
  if (rows) value = append(p, value, (change){rows, whole, FSDP_SPREAD_ROWS}, FSDP_SPREAD_ROWS, reader);
  if (columns)
    value = append(p, value, (change){columns, whole, FSDP_SPREAD_COLUMNS}, FSDP_SPREAD_COLUMNS, reader);
  fsdp_axis_set left = gradient_partial & ~gathered;
  if (left) share(p, value, left, reader);
  return value;
}
