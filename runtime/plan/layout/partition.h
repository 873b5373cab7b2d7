// Partition: from placements by name to what one rank does.
//
//   forward graph of a micro-batch + specs ──► the graph of one rank: local shapes and attributes, cut
//                                              parameters, and REDISTRIBUTE nodes between nodes that want a
//                                              value placed differently
//
// Axes of the mesh fall in three kinds. Those that cut the batch are ZeRO's: they cut parameters flat. Those
// that cut the sequence of the input (context) do the same, and attention gathers keys and values over them.
// The others (tensor) may cut a letter of an op (ops.def): its weight's, or that of the columns which it is
// given. An op whose rows lie in pieces over an axis needs its weights whole there. Whatever an op needs that
// a value has not is made by a REDISTRIBUTE node; the backward of that node makes the gradient's.
#pragma once

#include "runtime/base/status.h"
#include "runtime/plan/layout/factored.h"
#include "runtime/plan/layout/rows.h"

// What the partition makes of specs, for who completes them. Whether an op follows its input to pieces of
// rows: it knows no positions, needs no other rows and reads no tokens. The user's rule for the residual
// stream where a norm of a sum takes it, NULL: none.
bool fsdp_partition_works_on_pieces(const fsdp_graph *graph, const fsdp_node *node);
const fsdp_spec *fsdp_partition_residual_rule(const fsdp_graph *graph, const fsdp_specs *specs,
                                              const fsdp_node *sum);

// Partitions `graph`, which has no backward yet. `specs` name axes of `mesh`, factored as `axes` says.
// Those of outputs that no rule places become what the graph has. FSDP_ERR_INPUT or FSDP_ERR_OPTION for what
// no op can do, with the parameter, the axis and the remedy.
fsdp_status fsdp_partition(fsdp_graph *graph, fsdp_specs *specs, const fsdp_mesh *mesh,
                           const fsdp_factored_mesh *axes, fsdp_rows *rows, fsdp_error *error);
