// What the files of the partition share.
#pragma once

#include "runtime/base/status.h"
#include "runtime/plan/mesh/rows.h"
#include "runtime/plan/sharding/decisions.h"

// The blocks of a value's columns: what an axis that cuts them cuts.
typedef struct column_blocks {
  int count; // 0: not known, one block of single columns
  fsdp_cut_block blocks[FSDP_CUT_MAX_BLOCKS];
  bool has_heads; // groups are key/value heads
} column_blocks;

// Where a value lies over the axes that cut neither batch nor input sequence; over the others it is whole.
typedef struct value_spread {
  fsdp_axis_set rows, columns, partial;
  fsdp_axis_set shared;        // over which the backward sums its gradient, of all readers from one on
  int block;                   // decoder layer of the node that made it, or -1
  const column_blocks *blocks; // of its columns; NULL: single ones
  bool as_ruled;               // because a rule says so: what gathers it is made again for the backward
} value_spread;

enum { PARTITION_WAVE_NODES = 8 };

typedef struct partitioner {
  fsdp_graph *graph;
  const fsdp_specs *specs;
  const fsdp_factored_mesh *axes;
  const fsdp_mesh *mesh; // axes->mesh
  const fsdp_decisions *decisions;
  fsdp_rows rows;
  fsdp_error *error;
  // By value of the graph as it was: the value that holds it now, and how the columns are made of items.
  const fsdp_node *nodes;
  int node_count;
  int *current;
  value_spread *first_use; // how it lies where it is read first
  bool *is_used;
  column_blocks *columns;
  int value_count;
  int wave[PARTITION_WAVE_NODES], wave_count; // the first wave of a layer: nodes of the new forward
  value_spread *spread;                       // by value, grows with the graph
  int spread_capacity;
} partitioner;

// ---- partition_shapes.c: sizes on one rank

// Items that a rank holds of `count` over `axes`, rounded up.
int64_t partition_share(const partitioner *p, int64_t count, fsdp_axis_set axes);
// How `axes` cut columns made of `blocks`: all of them the groups, or, of heads, replicas the items.
fsdp_cut partition_cut(const partitioner *p, const column_blocks *blocks, fsdp_axis_set axes);
// Finds the blocks of every value's columns from the ops that name them by letters.
void partition_find_columns(partitioner *p);
// The attributes of one rank for a node: sizes of letters that are cut, rows, first indices.
void partition_localise(const partitioner *p, const fsdp_op_strategy *a, fsdp_node *node);

// Of a value, also of a new one; the pointer is valid until the next call.
value_spread *partition_spread(partitioner *p, int value);
// The axes that cut a value.
fsdp_value_axes partition_axes(partitioner *p, int value);
// What a node writes lies as its letters say; sums over letters that an output lacks are partial.
void partition_place_outputs(partitioner *p, const fsdp_node *node, const fsdp_op_strategy *a);

// ---- partition_attention.c

// Makes the rows of an attention's q|k|v those that it can take: all of a rank's part of the sequence, or, if
// that is the whole sequence, the pieces that its strategy says.
fsdp_status partition_take_rows(partitioner *p, const fsdp_node *attention, const fsdp_op_strategy *a);
// Makes `node`, of which a rank has a part of the positions, a context_attention.
fsdp_status partition_context_attention(partitioner *p, fsdp_node *node, const fsdp_op_strategy *a);

// After attention: makes the query heads that pad a group zero. Their query is zero, but the group's keys and
// values are not. `heads` cut the heads; `whole` has the attributes before they were cut.
void partition_mask_heads(partitioner *p, const fsdp_node *attention, fsdp_axis_set heads,
                          const fsdp_op_attrs *whole);

// The first value that a node writes.
int partition_first_output(const fsdp_node *node);

// ---- partition_waves.c

// Takes note of the last node of the forward. After the last one on a layer's routed rows: repeats them for
// the rows beyond the planned capacity.
void partition_waves(partitioner *p);

// ---- partition_dropout.c

// Adds the dropout that the graph asks for to the forward of one rank.
void partition_add_dropout(partitioner *p);

// ---- partition_convert.c: REDISTRIBUTE nodes

// Appends what makes `value` lie as `wanted`, for readers that make its gradient partial over
// `gradient_partial`. Returns the value to read; -1 after an error.
int partition_convert(partitioner *p, int value, fsdp_value_axes wanted, fsdp_axis_set gradient_partial,
                      const fsdp_node *reader);
