// What the forward of each decoder layer saves for its backward: the activations that backward nodes read.
//
// A saved value is named by the op that makes it: "rmsnorm", "attention", "swiglu". Every op with weights is
// "linear", every attention "attention". A sum of the residual stream is "residual", also if a fused op makes
// it together with its norm, of which the rest of that op's outputs are, or a gemm does (residual.c).
#pragma once

#include "models/graph/graph.h"

typedef struct fsdp_saved_value {
  int value; // of the graph
  int layer;
  int maker;           // the forward node that writes it first; of a sum that a gemm makes, its norm
  bool is_layer_input; // the residual that enters the layer
  bool is_made_once;   // that, or a choice: it is never recomputed
  const char *name;    // static
} fsdp_saved_value;

typedef struct fsdp_saved {
  fsdp_saved_value *values; // in the order in which the forward makes them
  int count;
} fsdp_saved;

// All of a graph's; release it with fsdp_saved_release.
fsdp_saved fsdp_saved_create(const fsdp_graph *graph);
// Frees the list, not the graph.
void fsdp_saved_release(fsdp_saved *saved);

// Whether `module` is the name of the module whose op makes the value, or of one whose weight that op uses:
// "input_layernorm", "up_proj".
bool fsdp_saved_is_of(const fsdp_graph *graph, const fsdp_saved_value *saved, const char *module);

// "rmsnorm:input_layernorm", "linear:q_proj": the name with the first module that tells it from the layer's
// other values. Returns `out`.
#define FSDP_SAVED_NAME_BYTES 64
const char *fsdp_saved_name(const fsdp_graph *graph, const fsdp_saved_value *saved,
                            char out[FSDP_SAVED_NAME_BYTES]);
