// A model folder's weights matched with a model's parameters: which tensors each parameter is read from.
#pragma once

#include "models/graph/graph.h"
#include "runtime/checkpoint/safetensors.h"

typedef struct fsdp_weights fsdp_weights;

// Opens `path` (as fsdp_safetensors_open) and finds the tensors of every parameter of `graph`, which must
// outlive the result: one of its name, or those that it is stored as (models/graph/stored.h). FSDP_ERR_INPUT,
// with names, expected and found, if one is missing, has a different shape or holds integers, or if the files
// hold a tensor that the model does not have (a tied module's own weight is allowed if it is equal). The
// graph's base_prefix may be missing in stored names.
// `stored_vocab` (0: none): tensors of so many rows stand for parameters of more rows, alike in the rest. Of
// these each row that is not stored is the mean of all that are, summed in double in their order.
fsdp_status fsdp_weights_open(const char *path, const fsdp_graph *graph, int64_t stored_vocab,
                              fsdp_weights **weights, fsdp_error *error);
void fsdp_weights_close(fsdp_weights *weights); // NULL is allowed

// Reads elements [first, first + count) of parameter `param` (its index in the graph) as fp32, and no other
// byte. May be called by several threads at once.
fsdp_status fsdp_weights_read(fsdp_weights *weights, int param, int64_t first, int64_t count, float *out,
                              fsdp_error *error);

// The files that hold the tensors, and their index.
const fsdp_safetensors *fsdp_weights_files(const fsdp_weights *weights);
