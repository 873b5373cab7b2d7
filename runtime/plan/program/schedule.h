// The scheduler: from graph, units and strategy to the list of instructions. All policy is here: when a unit
// is gathered and freed, prefetch depth, recomputation, accumulation, offload, when updates run. It makes no
// waits (waits.h) and no addresses (memory.h); both are inferred from the order of the list.
#pragma once

#include "runtime/plan/mesh/units.h"
#include "runtime/plan/program/optimizer.h"
#include "runtime/plan/program/program.h"
#include "runtime/plan/program/saving.h"

typedef enum fsdp_strategy { FSDP_FULL, FSDP_GRAD_OP, FSDP_NO, FSDP_HYBRID, FSDP_ZERO1 } fsdp_strategy;
typedef enum fsdp_accumulate { FSDP_ACCUMULATE_REDUCE, FSDP_ACCUMULATE_LOCAL } fsdp_accumulate;

// What determines the program beside graph and units; plan.h describes each field.
typedef struct fsdp_schedule_config {
  fsdp_strategy strategy;
  fsdp_axis_set token_axes; // over which ranks have different tokens, whose losses and counts add up
  int micro_batches, prefetch;
  bool cpu_offload;
  const fsdp_fate *fates; // of the graph's values
  fsdp_accumulate accumulate;
  fsdp_dtype param_dtype, reduce_dtype, master_dtype, moment_dtype;
  float grad_clip, norm_limit; // norm_limit: the greatest norm that is applied
  double beta1, beta2;
  float adam_eps, weight_decay;
  bool evaluation, check, snapshot, exchange; // sections beside steps
  const fsdp_optimizer *optimizer;
  fsdp_op_device device;
  fsdp_op_gpu gpu;
  int64_t gemm_workspace_bytes;
} fsdp_schedule_config;

// Where a unit's state lies: tensors of the program, -1 if the plan has none.
typedef struct fsdp_unit_state {
  int slot[FSDP_SLOTS_MAX];     // the optimizer's, shards
  int copy;                     // of slot 0 in param dtype (no with bf16, offload with bf16)
  int whole;                    // the unit's parameters in param dtype, of all shards (zero1)
  int grad_shard;               // what the update reads
  int snapshot[FSDP_SLOTS_MAX]; // this rank's slices of the slots in host memory, which a snapshot fills
} fsdp_unit_state;

typedef struct fsdp_schedule_result {
  fsdp_program *program;
  fsdp_unit_state *unit_state; // by unit
  int gemm_workspace;          // tensor of gemm_workspace_bytes, or -1; every gemm runs on one stream
} fsdp_schedule_result;

// Makes the program; the caller owns it and unit_state.
void fsdp_schedule(const fsdp_schedule_config *config, const fsdp_graph *graph, const fsdp_units *units,
                   fsdp_schedule_result *result);

const char *fsdp_strategy_name(fsdp_strategy strategy);
