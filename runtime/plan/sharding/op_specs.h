// Strategies of a model's operators as specs of its weights and module outputs (specs.h).
//
//   model.layers.*.mlp.down_proj: [[2, 4], [1, 4]]  ──► propagation over the model's operators ──► specs
//
// What cuts the batch and the sequence of tokens cuts the input; what cuts a letter of a weight cuts that
// dimension, and where `shards_weights` says so the axes of the input but data cut the weight flat, too. A
// module's output lies as the last operator in it makes it.
#pragma once

#include "runtime/plan/sharding/propagate.h"
#include "runtime/plan/sharding/specs.h"

#define FSDP_OP_STRATEGIES_PLACE "--op-strategies"

// Propagates over a model's forward graph. Its batch is that of one model replica; the dataflow's is as many
// times as large as the batch is cut by any operator. The caller owns *propagation, which owns the dataflow.
fsdp_status fsdp_propagate_graph(const fsdp_graph *graph, const fsdp_slice_mesh *mesh,
                                 const fsdp_given_strategies *given, fsdp_dtype compute,
                                 fsdp_propagation **propagation, fsdp_error *error);

// The mesh for a propagation over prime factors: neighbouring factors that are always cut together are one
// axis, named for what it cuts: `batch_axis` the batch, context the tokens' sequence, tensor anything else;
// a second one of a kind is axis1, axis2, ... FSDP_ERR_OPTION if there are too many axes.
fsdp_status fsdp_mesh_of_propagation(const fsdp_propagation *propagation, const char *batch_axis,
                                     fsdp_mesh *mesh, fsdp_error *error);

// The specs of a propagation over fsdp_slice_mesh_of(mesh). The caller owns *specs. FSDP_ERR_INPUT if tokens
// and targets lie differently, FSDP_ERR_OPTION for an axis that cuts nothing.
fsdp_status fsdp_specs_of_propagation(const fsdp_propagation *propagation, const fsdp_graph *graph,
                                      const fsdp_mesh *mesh, bool shards_weights, fsdp_specs **specs,
                                      fsdp_error *error);
