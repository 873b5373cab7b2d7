// How weight files hold a parameter: as one tensor of its name, or as others, one after the other in its
// elements. Stacked experts (E, out, in) are E tensors (out, in) each; with two names, as of gate and up, E
// times two tensors of half the rows:
//
//   gate_up_proj (E, 2I, C) = experts.0.w1, experts.0.w3, experts.1.w1, experts.1.w3, ...    (I, C) each
//
// In a name `*` is the expert's number; a name without it is that of the whole parameter.
#pragma once

#include "models/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_stored {
  char name[FSDP_NAME_BYTES];
  int dims;
  int64_t shape[FSDP_MAX_DIMS];
  int64_t numel; // the same of all tensors of a parameter
} fsdp_stored;

// Tensors of parameter `param`, at least 1, and one of them.
int fsdp_stored_count(const fsdp_graph *graph, int param);
fsdp_stored fsdp_stored_at(const fsdp_graph *graph, int param, int index);

#ifdef __cplusplus
}
#endif
