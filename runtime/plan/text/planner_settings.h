// The settings of a planner (runtime/plan/fsdp_plan.h): a table of those that are numbers, words and short
// texts.
#pragma once

#include "runtime/base/status.h"
#include "runtime/plan/mesh/mesh.h"
#include "runtime/plan/search/search_config.h"

typedef struct fsdp_settings {
  int64_t ranks, ranks_per_node; // 0: at most 8
  int64_t tensor_parallel, context_parallel, expert_parallel, expert_blocks, sequence_parallel;
  double expert_capacity;
  int64_t batch, seq, grad_accum, global_batch; // global_batch 0: as batch and grad_accum say
  int64_t strategy, numel_to_wrap, prefetch, cpu_offload;
  int64_t accumulate, param_dtype;                     // -1: the strategy's, the device's
  int64_t reduce_dtype, master_dtype, moment_dtype;    // fsdp_dtype
  int64_t backend;                                     // fsdp_op_device, -1: the profile's, or a CPU
  int64_t memory_limit, host_memory_limit;             // bytes, 0: none
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
