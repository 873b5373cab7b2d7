// The passes that make a step program: from graph and units to the list of instructions.
//
//   inputs      step scalars, tokens and targets                                   pass_inputs.c
//   lower       graph nodes, one gemm per weight, one sum per bias                 pass_lower.c
//   join        gemms whose weights are neighbours in a unit become one            pass_join.c
//   overlap     weights' gradients while inputs' are on the wire                   pass_overlap.c
//   recompute   what the backward reads and the forward did not save               pass_recompute.c
//   offload     saved activations to the host and back                             pass_offload.c
//   workspaces  scratch of kernels                                                 pass_workspaces.c
//   gathers     buffers of whole units, and when they are filled                   pass_gathers.c
//   gradients   buffers of gradients, their reductions, the updates after them     pass_gradients.c
//   update      norm, clipping, updates that wait for it, parameters, results      pass_update.c
//   check       digests of the state, which replicas compare                       pass_check.c
//   snapshot    this rank's slices of the state to host memory                     pass_state.c
//   exchange    slices between replicas after a load, copies, whole parameters     pass_state.c
//
// A pass reads the node list (nodes.h) and the decisions of the builder (builder.h), and changes the list.
// What each leaves to the next is checked (fsdp_nodes_check): before gathers, operands may name units' weights,
// before gradients also units' gradients, and behind them tensors alone; nothing is read before it is
// written. Until overlap, nodes of one origin are neighbours. Every gradient that is reduced is of a unit that trains, and each
// such unit is updated once. What it keeps from one section to the next is a field of its own. Passes make no waits and no addresses:
// both are inferred from the order of the list. Only these files include this header.
#pragma once

#include "runtime/plan/program/builder.h"

void pass_step_inputs(step_builder *s);  // once per step, and once per evaluation
void pass_batch_inputs(step_builder *s); // once per micro-batch
void pass_lower(step_builder *s);
void pass_join(step_builder *s);
void pass_overlap(step_builder *s);
void pass_recompute(step_builder *s);
void pass_offload(step_builder *s);
void pass_workspaces(step_builder *s);
void pass_gathers(step_builder *s);
void pass_gradients(step_builder *s);
void pass_update(step_builder *s);
void pass_evaluation_result(step_builder *s);
void pass_check(step_builder *s);
void pass_snapshot(step_builder *s);
void pass_exchange(step_builder *s);

// Fills `to`, which holds unit `u` whole in param dtype, from the shards of all ranks, at the cursor. Without
// `has_slot`, this rank's slot of it comes from the copy, or the master. Returns the first node.
int step_gather_shards(step_builder *s, int u, int to, bool has_slot);

// Offload: the master of unit `u` on the host to this rank's slot of what zero1 keeps whole.
void step_raise_slot(step_builder *s, int u);

// The update of unit `u` from its gradient shard: in pass_update, or right after its reduction.
void step_unit_update(step_builder *s, int u, fsdp_stream stream);
