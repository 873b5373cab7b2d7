// Units: which parameters are gathered and freed together, and how each unit lies in one flat buffer. A
// wrapped module is one unit, or one for each set of axes that its parameters lie over, and for each block of
// experts.
//
//   flat buffer of a unit on a rank (elements; F ranks in a group over its shard axes)
//   | q_proj      |k_proj|v_proj|pad| ... |pad to 16*F|
//   |<-- shard 0 -->|<-- shard 1 -->|<-- shard 2 -->|        shard_numel = padded_numel / F, a multiple of 16
//
// Parameters lie in state-dict order, each starting at a multiple of 16 elements; of one that tensor
// parallelism cuts, there is the rank's piece. The whole is padded so that each shard is a multiple of 16
// elements too: no size has to be divisible by another. boxes.h says which elements of which parameter a
// range of the flat buffer holds, which is the same in every dtype.
#pragma once

#include "models/graph/graph.h"
#include "runtime/base/status.h"
#include "runtime/plan/mesh/mesh.h"

#include <stdio.h>

#define FSDP_UNIT_ALIGN_ELEMS 16

typedef enum fsdp_wrap_kind {
  FSDP_WRAP_SIZE,
  FSDP_WRAP_BLOCK,
  FSDP_WRAP_NONE,
  FSDP_WRAP_MODULE,
  FSDP_WRAP_CHOSEN
} fsdp_wrap_kind;

typedef struct fsdp_wrap_policy {
  fsdp_wrap_kind kind;
  int64_t numel; // SIZE: wrap a module if the elements that its children left unwrapped are >= numel
  // MODULE: class names separated by commas. CHOSEN: of each module of the graph, '1' if it is wrapped, else
  // '0'.
  const char *classes;
} fsdp_wrap_policy;

typedef struct fsdp_unit_param {
  int param;      // in the graph
  int64_t offset; // of its first element in the flat buffer
} fsdp_unit_param;

typedef struct fsdp_unit {
  int module;                 // the wrapped module
  char path[FSDP_NAME_BYTES]; // of the module; if it is several units, "model.norm (fsdp)"
  bool trainable;             // its parameters are, all of them, or none
  bool balances;              // they are routers' correction biases: not in the gradient norm
  int expert_block;           // they are that block of a layer's experts, from 1 on; 0: none
  int64_t numel;              // of its parameters, whole
  int64_t padded_numel;       // of the flat buffer; 0 if the unit holds no parameter
  int64_t shard_numel;
  fsdp_axis_set shard_axes;       // that cut the flat buffer
  fsdp_axis_set replica_axes;     // over which all ranks hold the same shard; the others cut parameters
  int shard_count, replica_count; // ranks of a group over these: F, R
  fsdp_axis_set sum_axes;         // those replica axes over which the ranks' gradients are summands
  int sum_count;                  // ranks of a group over these
  float norm_weight;              // of a rank's sum of squares in the gradient norm: 1 / R
  int first_param, param_count;   // in units->params
} fsdp_unit;

typedef struct fsdp_units {
  fsdp_unit *units; // in the order of their modules: the root first
  fsdp_unit_param *params;
  int *unit_of_param;  // by the graph's parameter index
  int *slot_of_param;  // its index in `params`
  int *unit_of_module; // the first unit that a module itself is, or -1
  int count, param_count;
  fsdp_mesh mesh;
} fsdp_units;

// Applies the policy (the root is always a unit; a ModuleList only if it is named) and lays every unit out
// over the axes that its parameters' placements name. FSDP_ERR_OPTION if MODULE names a class that the model
// does not have, or if a unit has the experts of several layers and these are in blocks.
fsdp_status fsdp_units_create(const fsdp_graph *graph, const fsdp_wrap_policy *policy, const fsdp_mesh *mesh,
                              fsdp_units **units, fsdp_error *error);
void fsdp_units_destroy(fsdp_units *units); // NULL is allowed

// Elements of a parameter that a rank holds in the flat buffer, padding included: the parameter's cut piece.
int64_t fsdp_units_local_numel(const fsdp_graph *graph, int param);

// Whether several ranks hold the same shard of any unit.
bool fsdp_units_have_replicas(const fsdp_units *units);

// The first element of a rank's shard in the flat buffer of a unit.
int64_t fsdp_units_shard_begin(const fsdp_units *units, int unit, int rank);

// Replicas share the loading and saving of a shard. Each has `fsdp_unit_slice` elements, starting at
// `fsdp_unit_slice` * (its place). The last one also has the remainder (`fsdp_unit_last_slice` in all).
int64_t fsdp_slice_elems(int64_t shard, int replicas);
int64_t fsdp_unit_slice(const fsdp_unit *unit);
int64_t fsdp_unit_last_slice(const fsdp_unit *unit);

// The wrapped module tree in PyTorch's notation. Neighbours in a ModuleList that print alike become one line.
void fsdp_units_print_tree(const fsdp_units *units, const fsdp_graph *graph, FILE *out);
