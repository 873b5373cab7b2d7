// What the files of the partition share.
#pragma once

#include "runtime/base/status.h"
#include "runtime/plan/layout/factored.h"
#include "runtime/plan/layout/rows.h"

// The blocks of a value's columns: what an axis that cuts them cuts.
typedef struct column_blocks {
  int count; // 0: not known, one block of single columns
  fsdp_cut_block blocks[FSDP_CUT_MAX_BLOCKS];
  bool has_heads; // groups are key/value heads
} column_blocks;

// Where a value lies over the axes that cut neither batch nor input sequence; over the others it is whole.
typedef struct value_spread {
  fsdp_axis_set rows, columns, partial;
  int block;                   // decoder layer of the node that made it, or -1
  const column_blocks *blocks; // of its columns; NULL: single ones
  bool as_ruled;               // because a rule says so: what gathers it is made again for the backward
} value_spread;

typedef struct partitioner {
  fsdp_graph *graph;
  const fsdp_specs *specs;
  const fsdp_factored_mesh *axes;
  const fsdp_mesh *mesh; // axes->mesh
  fsdp_axis_set batch, parts, pieces;
  fsdp_rows rows;
  fsdp_error *error;
  // By value of the graph as it was: the value that holds it now, and how the columns are made of items.
  const fsdp_node *nodes;
  int node_count;
  int *current;
  int *output_of;          // the outermost module below a layer whose output it is, -1: none
  value_spread *first_use; // how it lies where it is read first
  bool *is_used;
  column_blocks *columns;
  int value_count;
  value_spread *spread; // by value, grows with the graph
  int spread_capacity;
} partitioner;

// The axes of a letter.
typedef struct assignment {
  fsdp_axis_set of[26];
  fsdp_axis_set rows; // pieces
} assignment;

static inline fsdp_axis_set assigned(const assignment *a, char letter) {
  return a->of[letter - 'a'];
}

// ---- partition_shapes.c: sizes on one rank

// Items that a rank holds of `count` over `axes`, rounded up.
int64_t partition_share(const partitioner *p, int64_t count, fsdp_axis_set axes);
// How `axes` cut columns made of `blocks`: all of them the groups, or, of heads, replicas the items.
void partition_cut(const partitioner *p, const column_blocks *blocks, fsdp_axis_set axes, fsdp_cut *cut);
// Finds the blocks of every value's columns from the ops that name them by letters.
void partition_find_columns(partitioner *p);
// The attributes of one rank for a node: sizes of letters that are cut, rows, first indices.
void partition_localise(const partitioner *p, const assignment *a, fsdp_node *node);

// ---- partition_attention.c

// Makes the rows of an attention's q|k|v those that it can take: all of a rank's part of the sequence, or, if
// that is the whole sequence, one piece.
fsdp_status partition_take_rows(partitioner *p, const fsdp_node *attention);
// Whether keys and values of an attention over `qkv` come from rows of their own.
bool partition_needs_context(const partitioner *p, int qkv);
// Makes `node`, whose qkv is whole over axes that cut pieces or lies in them, a context_attention, whose
// rows `a` then says.
fsdp_status partition_context_attention(partitioner *p, fsdp_node *node, assignment *a);

// After attention: makes the query heads that pad a group zero. Their query is zero, but the group's keys and
// values are not. `heads` cut the heads; `whole` has the attributes before they were cut.
void partition_mask_heads(partitioner *p, const fsdp_node *attention, fsdp_axis_set heads,
                          const fsdp_op_attrs *whole);

// ---- partition_store.c: how outputs are stored

// Finds the modules whose outputs the values are.
void partition_find_outputs(partitioner *p);
// Where norms are taken: the pieces, if the residual stream lies in them.
fsdp_axis_set partition_norm_rows(const partitioner *p, const fsdp_node *norm);
// Converts what `node` (as it was) made to how rules store it.
fsdp_status partition_store(partitioner *p, const fsdp_node *node);
// Writes how outputs lie into the specs of modules that no rule places, so that they print as rules of the
// same program.
void partition_write_outputs(const partitioner *p, fsdp_specs *specs);
// If a rule stores the residual stream in columns: takes the sum of a fused sum and norm by itself, and makes
// `node` the norm alone.
fsdp_status partition_split_sum(partitioner *p, fsdp_node *node);

// ---- partition_convert.c: REDISTRIBUTE nodes

// Appends what makes `value` lie as `wanted`, for readers that make its gradient partial over
// `gradient_partial`. Returns the value to read; -1 after an error.
int partition_convert(partitioner *p, int value, value_spread wanted, fsdp_axis_set gradient_partial,
                      const fsdp_node *reader);
// Of a value, also of a new one; the pointer is valid until the next call.
value_spread *partition_spread(partitioner *p, int value);
