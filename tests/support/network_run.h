// Runs a network of operators on ranks, as a propagation cuts it: each rank is a thread with its parts of all
// tensors. Kernels of the CPU where there are some (linear, add, add_bias, rmsnorm), plain loops for the
// rest; partial sums are summed, and inputs that lie otherwise are gathered, by in-process communicators.
#pragma once

#include "runtime/plan/propagate/propagate.h"

// Runs it. `given`: by tensor, the whole values of inputs and parameters; NULL for what operators make. Every
// dimension must be a multiple of the slices of its letter. Kinds: matmul with one matrix as weight, add,
// mul, relu, transpose, reduce_mean, rmsnorm. Returns, by tensor, the whole values of what operators make, as
// the ranks' parts put together; the caller frees each and the array.
float **network_run(const fsdp_network *network, const fsdp_propagation *propagation, float *const *given);

// The same on one rank.
float **network_run_alone(const fsdp_network *network, float *const *given);

void network_values_free(const fsdp_network *network, float **values);
int64_t network_numel(const fsdp_operator_tensor *tensor);
