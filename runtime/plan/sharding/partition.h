// Partition: from placements by name to what one rank does.
//
//   forward graph of a micro-batch + specs ──► the graph of one rank: local shapes and attributes, cut
//                                              parameters, and REDISTRIBUTE nodes between nodes that want a
//                                              value placed differently
//
// Each op's strategy is decided first (decisions.h); the partition applies it. Axes of the mesh fall in three
// kinds. Those that cut the batch are ZeRO's: they cut parameters flat. Those that cut the sequence of the
// input (context) do the same, and attention gathers keys and values over them. The others (tensor) shard
// letters of ops. An op whose rows lie in pieces over an axis needs its weights whole there. Whatever an op
// needs that a value has not is made by a REDISTRIBUTE node; the backward of that node makes the gradient's.
#pragma once

#include "runtime/base/status.h"
#include "runtime/plan/mesh/rows.h"
#include "runtime/plan/sharding/factored.h"

// Partitions `graph`, which has no backward yet. `specs` name axes of `mesh`, factored as `axes` says.
// Those of outputs that no rule places become what the graph has. FSDP_ERR_INPUT or FSDP_ERR_OPTION for what
// no op can do, with the parameter, the axis and the remedy.
fsdp_status fsdp_partition(fsdp_graph *graph, fsdp_specs *specs, const fsdp_mesh *mesh,
                           const fsdp_factored_mesh *axes, fsdp_rows *rows, fsdp_error *error);
