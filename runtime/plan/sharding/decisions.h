// Strategies: over which axes of the mesh each letter of an op is sharded, for every op of a forward graph,
// as propagation finds them from what specs say (seeds.h); and how values are stored that follow from them.
//
// A strategy is what an op does. How a value is stored is its placement: as the op makes it, or as the rule
// of the module whose output it is says. Both are decided before anything is partitioned (partition.h).
// The axes are those of the factored mesh that cut neither batch nor sequence of the input: over these every
// op has its own rows; those of letter t are the pieces of rows.
//
// The axis expert cuts the batch, too, but an op on routed experts takes the rows of all its ranks, and each
// rank has some of the experts (letters e, u and a): over it the rows of any other op count as pieces.
#pragma once

#include "runtime/base/status.h"
#include "runtime/plan/sharding/dataflow.h"
#include "runtime/plan/sharding/factored.h"

// How a value's rows and columns are sharded.
typedef struct fsdp_value_axes {
  fsdp_axis_set rows, columns;
} fsdp_value_axes;

typedef struct fsdp_decided_op {
  fsdp_op_strategy strategy;
  bool splits_sum;           // a norm of a sum, of which the sum is taken by itself
  fsdp_value_axes sum;       // how it is stored then
  fsdp_axis_set biases_rows; // of a product with biases that makes partial sums: where these are added
} fsdp_decided_op;

// A value that a rule stores otherwise than its op makes it.
typedef struct fsdp_stored_value {
  bool is_stored;
  fsdp_value_axes axes;
} fsdp_stored_value;

typedef struct fsdp_decisions {
  fsdp_axis_set batch, parts; // what cuts the input's batch and sequence
  fsdp_axis_set pieces;       // what cuts any output's sequence further
  fsdp_axis_set dispatch;     // among what cuts the batch: over which experts are cut
  fsdp_decided_op *ops;       // by node of the forward
  int *output_of;             // by value: the outermost module below a layer whose output it is; -1: none
  fsdp_stored_value *stored;  // by value
} fsdp_decisions;

// Decides. FSDP_ERR_INPUT for what no op can do, with the parameter, the axis and the remedy. The caller owns
// *out.
fsdp_status fsdp_decisions_make(const fsdp_graph *graph, const fsdp_specs *specs, const fsdp_mesh *mesh,
                                const fsdp_factored_mesh *axes, fsdp_decisions **out, fsdp_error *error);
void fsdp_decisions_destroy(fsdp_decisions *decisions); // NULL is allowed

// How a rule stores an output: over which axes beyond the input's. None without a rule (NULL).
fsdp_value_axes fsdp_decisions_stored(const fsdp_decisions *decisions, const fsdp_factored_mesh *axes,
                                      const fsdp_spec *rule);

// Whether dimension `dim` of a node's operand, a parameter, has a part for each expert.
bool fsdp_node_stacks_experts(const fsdp_node *node, int operand, int dim);

// The row's operand of a node's operand `o`: linear ops leave their weights and biases out.
int fsdp_node_row_operand(const fsdp_node *node, int o);
// How an op with this strategy wants, or makes, an operand of its row; and the axes over which what it makes
// is a sum that is left to be summed.
fsdp_value_axes fsdp_strategy_operand(const fsdp_op_strategy *strategy, const fsdp_op_operand *operand);
fsdp_axis_set fsdp_strategy_partial(const fsdp_op_strategy *strategy, const fsdp_op_letters *row,
                                    int operand);
// Of a norm of a sum: the operand that the sum writes, and the norm that remains if it is there.
int fsdp_node_sum_operand(const fsdp_node *node, fsdp_op_remainder *norm);
