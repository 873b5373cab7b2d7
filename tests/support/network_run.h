// Runs a network of operators on ranks, as a propagation cuts it: each rank is a thread with its parts of all
// tensors (network_compute.h). Partial sums are summed, and what lies otherwise than a reader wants it is
// gathered, by in-process communicators over the axes of the mesh.
#pragma once

#include "runtime/plan/sharding/propagate.h"

// Runs it. `given`: by tensor, the whole values of inputs and parameters; NULL for what operators make.
// `received`, unless NULL: by entry of propagation->moved, the bytes of its new part that the rank lacking
// most of it gets from others. Returns, by tensor, the whole values of what operators make, as the ranks'
// parts put together; the caller frees each and the array.
float **network_run(const fsdp_dataflow *flow, const fsdp_propagation *propagation, float *const *given,
                    int64_t *received);

// The same on one rank.
float **network_run_alone(const fsdp_dataflow *flow, float *const *given);

void network_values_free(const fsdp_dataflow *flow, float **values);
int64_t network_numel(const fsdp_operator_tensor *tensor);
