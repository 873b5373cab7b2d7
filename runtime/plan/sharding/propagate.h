// Strategies of a few operators, propagated to the rest of a graph.
//
//   fc1: given (2,1),(1,4)      fc1 ──► bias ──► act ──► fc2      8 ranks, axes 2, 2, 2
//                                       (2,4),(4)  (2,4)   (2,4),(4,1)
//
// A strategy says over which axes of the mesh each letter of an operator is cut; users write it as slice
// counts, one list for each input. Propagation is breadth first from the given operators, along the edges
// (forward) until nothing more is reached, then against them (backward), and so on. An operator waits for all
// of its neighbours on that side that will be reached. Of its candidates, in lexicographic order of slices,
// it takes one that leaves its decided neighbours' tensors where they are (inputs; backward: outputs, too);
// of these one with the least compute, then the least communication of tensors that are no parameters, then
// the first. If there is none, the one with the least redistribution. An operator that nothing reaches takes
// the first that suits what it shares with decided ones. Readers of one parameter must cut it alike, and what
// is given stays.
//
// The idea is that of sharding propagation in MindSpore ("Sharding Techniques"). Costs are closed rules:
//   compute         items of all letters on a rank, multiplied
//   communication   of outputs that are partial sums, and of gradients of inputs that are: over k ranks an
//                   all-reduce lets a rank receive 2 (k - 1) / k of what it holds. A model's attention whose
//                   sequence is cut gathers keys and values, k - 1 parts, and reduce-scatters their
//                   gradients, as many
//   redistribution  bytes that a rank receives: its new part without what of it is in its old one. Where in
//                   every dimension the axes of one of the two placements begin with those of the other, that
//                   is the smaller part; else some rank has nothing of its new part. The gradient goes back:
//                   it moves as a tensor does, and of axes where it is a sum, and that the tensor was
//                   gathered over, a rank receives k - 1 further parts (a reduce-scatter). Both directions
//                   count, as one sum.
// Parts are rounded up. A value that an operator changes counts as two tensors.
#pragma once

#include "runtime/plan/sharding/slices.h"

// Propagates. The caller owns *out; `flow` outlives it. FSDP_ERR_INPUT for a line that names nothing or that
// its operator cannot have, for lines that contradict each other, and if nothing is given.
fsdp_status fsdp_propagate(const fsdp_dataflow *flow, const fsdp_slice_mesh *mesh,
                           const fsdp_given_strategies *given, fsdp_propagation **out, fsdp_error *error);
// The same from strategies that are decided already (decision FSDP_DECIDED_GIVEN; none at all is allowed), by
// operator, with candidates for the others within `limits`, by operator; NULL: any.
fsdp_status fsdp_propagate_within(const fsdp_dataflow *flow, const fsdp_slice_mesh *mesh,
                                  const fsdp_operator_limits *limits, const fsdp_operator_strategy *decided,
                                  fsdp_propagation **out, fsdp_error *error);
void fsdp_propagation_destroy(fsdp_propagation *propagation); // NULL is allowed
