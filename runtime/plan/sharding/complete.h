// Completes what a sharding file leaves open: weights without a line.
//
//   o_proj.weight: [fsdp, tensor] ──► o_proj is given ──► propagated ──► q_proj.weight: [tensor, null]
//
// Axes of the input cut the rows of every operator; over these a weight without a line is replicated. The
// other axes are propagated (propagate.h) from the operators that lines say all of: those of a weight with a
// line, products whose outputs are stored in columns, and norms of a residual stream whose layer has a line.
// Where rows lie in pieces is what lines of outputs say: the others only follow.
#pragma once

#include "runtime/plan/sharding/propagate.h"
#include "runtime/plan/sharding/specs.h"

#define FSDP_COMPLETED_PLACE "--sharding (propagated)"

// Whether a weight without a line has a dimension that an axis may cut which does not cut the input.
bool fsdp_specs_are_open(const fsdp_specs *specs, const fsdp_graph *graph, const fsdp_mesh *mesh);

// Gives these weights their specs. `graph` is not partitioned. The caller owns *network and *propagation,
// which refer to the places of `specs`. FSDP_ERR_INPUT for lines that cut the weights of one product
// differently, or if no strategy suits a weight that several operators read.
fsdp_status fsdp_specs_complete(fsdp_specs *specs, const fsdp_graph *graph, const fsdp_mesh *mesh,
                                fsdp_dtype compute, fsdp_network **network, fsdp_propagation **propagation,
                                fsdp_error *error);
