// Units: which parameters are gathered and freed together, and how each unit lies in one flat buffer.
//
//   flat buffer of a unit (elements, the same in every dtype; F ranks)
//   | q_proj      |k_proj|v_proj|pad| ... |pad to 16*F|
//   |<-- shard 0 -->|<-- shard 1 -->|<-- shard 2 -->|        shard_numel = padded_numel / F, a multiple of 16
//
// Parameters lie in state-dict order, each starting at a multiple of 16 elements, and the whole is padded so
// that each shard is a multiple of 16 elements too: nothing has to divide anything.
#pragma once

#include "models/graph/graph.h"
#include "runtime/base/status.h"

#include <stdio.h>

#define FSDP_UNIT_ALIGN_ELEMS 16

typedef enum fsdp_wrap_kind {
  FSDP_WRAP_SIZE,
  FSDP_WRAP_BLOCK,
  FSDP_WRAP_NONE,
  FSDP_WRAP_MODULE
} fsdp_wrap_kind;

typedef struct fsdp_wrap_policy {
  fsdp_wrap_kind kind;
  int64_t numel;       // SIZE: wrap a module when what its children have left of it is >= numel
  const char *classes; // MODULE: class names separated by commas
} fsdp_wrap_policy;

typedef struct fsdp_unit_param {
  int param;      // in the graph
  int64_t offset; // of its first element in the flat buffer
} fsdp_unit_param;

typedef struct fsdp_unit {
  int module; // the wrapped module
  char path[FSDP_NAME_BYTES];
  int64_t numel;        // of its parameters
  int64_t padded_numel; // of the flat buffer; 0 where the unit holds no parameter
  int64_t shard_numel;
  int first_param, param_count; // in units->params
} fsdp_unit;

typedef struct fsdp_units {
  fsdp_unit *units; // in the order of their modules: the root first
  fsdp_unit_param *params;
  int *unit_of_param;  // by the graph's parameter index
  int *slot_of_param;  // its index in `params`
  int *unit_of_module; // the unit that a module itself is, or -1
  int count, param_count;
  int shard_count; // F
} fsdp_units;

// Applies the policy (the root is always a unit; a ModuleList never, unless it is named) and lays every unit
// out for F ranks. FSDP_ERR_OPTION where MODULE names a class that the model does not have.
fsdp_status fsdp_units_create(const fsdp_graph *graph, const fsdp_wrap_policy *policy, int shard_count,
                              fsdp_units **units, fsdp_error *error);
void fsdp_units_destroy(fsdp_units *units); // NULL is allowed

// A run of a parameter's elements inside one rank's shard of a unit.
typedef struct fsdp_shard_run {
  int param;
  int64_t element_index; // first element, in the parameter
  int64_t shard_offset;  // where it lies in the shard
  int64_t numel;
} fsdp_shard_run;

// The runs of `unit` in the shard of `shard_rank`, in order, into `runs` (room for unit.param_count). Returns
// their number.
int fsdp_units_shard_runs(const fsdp_units *units, const fsdp_graph *graph, int unit, int shard_rank,
                          fsdp_shard_run *runs);

// The wrapped module tree in PyTorch's notation, neighbours of a ModuleList that print alike folded into one
// line.
void fsdp_units_print_tree(const fsdp_units *units, const fsdp_graph *graph, FILE *out);
