// The settings of a planner (runtime/plan/fsdp_plan.h): a table of those that are numbers, words and short
// texts.
#pragma once

#include "runtime/base/status.h"
#include "runtime/plan/mesh/mesh.h"
#include "runtime/plan/search/search_config.h"

typedef struct fsdp_settings {
  fsdp_plan_config plan;         // as far as settings say; param_dtype FSDP_DTYPE_COUNT: the device's
  int64_t ranks, ranks_per_node; // ranks_per_node 0: at most 8
  int64_t tensor_parallel, context_parallel, expert_parallel;
  int64_t global_batch;                                // 0: as batch and micro-batches say
  int backend;                                         // fsdp_op_device, -1: the profile's, or a CPU
  double grad_clip, memory_margin;                     // memory_margin -1: a search leaves 3% free
  char *mesh, *wrap, *recompute, *offload_activations; // owned; mesh NULL: from ranks and strategy
  bool fixed[FSDP_SEARCH_FIELD_COUNT];                 // set, so that a search keeps it
} fsdp_settings;

// The defaults; the caller releases them.
fsdp_settings fsdp_settings_create(void);
void fsdp_settings_release(fsdp_settings *settings);

// FSDP_ERR_OPTION for an unknown name or a value that is not of its form.
fsdp_status fsdp_settings_set(fsdp_settings *settings, const char *name, const char *text, fsdp_error *error);

// The mesh that they say. FSDP_ERR_OPTION if there is none of as many ranks.
fsdp_status fsdp_settings_mesh(const fsdp_settings *settings, fsdp_mesh *mesh, fsdp_error *error);
int fsdp_settings_ranks_per_node(const fsdp_settings *settings);
