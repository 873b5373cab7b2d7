// Seeds: what specs say of each operator of a model; one propagation decides the rest.
//
//   o_proj.weight: [fsdp, tensor] ──► o_proj is given ──► propagated ──► q_proj.weight: [tensor, null]
//
// A spec's source is its priority: a user's rule, a preset, the default; messages name its place. Axes of
// the input cut the rows of every operator; over these a weight without a line is replicated. The other axes
// are propagated (propagate.h) from the operators that specs say all of: those of a weight with a line,
// products whose outputs are stored in columns, and norms of a residual stream whose layer has a line. Within
// these limits, what is not said follows:
//
//   columns            an op follows those of its input, in letters that no parameter of it has
//   rows, in pieces    norms take them as the residual stream is stored; ops that know no positions and read
//                      no tokens follow their input; attention takes one piece, or all of them
#pragma once

#include "runtime/plan/sharding/propagate.h"
#include "runtime/plan/sharding/specs.h"

#define FSDP_COMPLETED_PLACE "--sharding (propagated)"

// Whether a weight without a line has a dimension that an axis may cut which does not cut the input.
bool fsdp_specs_are_open(const fsdp_specs *specs, const fsdp_graph *graph, const fsdp_mesh *mesh);

// Decides every operator. `graph` is not partitioned. The caller owns *propagation, which owns its dataflow
// and refers to the places of `specs`. FSDP_ERR_INPUT for lines that cut the weights of one product
// differently or cut what must be whole, or if no strategy suits a weight that several operators read.
fsdp_status fsdp_seeds_propagate(const fsdp_specs *specs, const fsdp_graph *graph, const fsdp_mesh *mesh,
                                 fsdp_dtype compute, fsdp_propagation **propagation, fsdp_error *error);

// The same, and gives weights without a line their specs.
fsdp_status fsdp_specs_complete(fsdp_specs *specs, const fsdp_graph *graph, const fsdp_mesh *mesh,
                                fsdp_dtype compute, fsdp_propagation **propagation, fsdp_error *error);
