// The scheduler: from graph, units and strategy to the list of instructions. All policy is here: when a unit
// is gathered and freed, prefetch depth, recomputation, accumulation, offload, when updates run. It makes no
// waits (waits.h) and no addresses (memory.h); both are inferred from the order of the list.
#pragma once

#include "models/model_config.h"
#include "runtime/plan/mesh/units.h"
#include "runtime/plan/program/optimizer.h"
#include "runtime/plan/program/program.h"
#include "runtime/plan/program/saving.h"
#include "runtime/plan/sharding/sharding.h"

#include <float.h>

// ---- The configuration of a plan: all that a user decides; the passes read it as it is

typedef enum fsdp_strategy { FSDP_FULL, FSDP_GRAD_OP, FSDP_NO, FSDP_HYBRID, FSDP_ZERO1 } fsdp_strategy;
typedef enum fsdp_accumulate { FSDP_ACCUMULATE_REDUCE, FSDP_ACCUMULATE_LOCAL } fsdp_accumulate;

typedef struct fsdp_given_strategies fsdp_given_strategies; // propagate/slices.h

#define FSDP_PLAN_ASSUMED_BYTES 80

// What differs between devices and shows in a plan.
typedef struct fsdp_plan_backend {
  const char *name; // "cpu", "cuda"
  fsdp_op_device device;
  // Scratch of the gemm library, kept for the whole run; 0 on the CPU.
  int64_t gemm_workspace_bytes;
  // Memory beside the arena: the driver's context, modules and the gemm library; and what each communicator
  // of more than one rank keeps. Whether they are estimates: not measured on such a device.
  int64_t reserve_bytes, comm_reserve_bytes;
  bool reserve_estimated, comm_reserve_estimated;
  // Nominal rates, for choices between recomputing, offloading and keeping: FLOPs of a gemm in the time in
  // which one byte of device memory is read or written, and bytes of device memory in the time in which one
  // crosses the link to the host.
  double flops_per_byte, link_ratio;
  // Keys in profiles of these, and of the kernels' capability, that the given profile lacks, so that they are
  // the default one's; "": none.
  char assumed[FSDP_PLAN_ASSUMED_BYTES];
} fsdp_plan_backend;

// What arenas may take; 0: unknown. One that needs more is made nevertheless, as small as may be.
typedef struct fsdp_memory_limits {
  int64_t bytes[FSDP_SPACE_COUNT];
  int64_t shared_bytes; // both together
  int64_t room_bytes;   // what the device's may take if that saves waits
} fsdp_memory_limits;

// What documents leave of attention's work, for prices.
typedef struct fsdp_document_work {
  double left;    // of the pairs of a query and a key that it sees without them, those within one; 0: all
  double most;    // pairs of the rank that has most, as a multiple of the mean of all; 0: 1
  double context; // the same within a context group, of the group's mean
} fsdp_document_work;

typedef struct fsdp_plan_config {
  fsdp_model_config model;
  int64_t batch, seq;     // of a micro-batch on one rank
  int micro_batches;      // micro-batches of a step
  fsdp_dropout dropout;   // of training
  bool loss_of_documents; // the loss is a mean over documents of the means over their targets (op.h)
  bool documents;         // attention and positions stay within a document; its start is an input of the step
  fsdp_document_work document_work[2]; // for prices: in layers without a window, and with one
  double imbalance; // for prices: rows of the rank whose experts get most, as a multiple of the mean; 0: 1
  fsdp_strategy strategy;
  fsdp_mesh mesh;
  bool sequence_parallel; // where tensor has several ranks and rules do not say it: rows that it does not cut
                          // by columns lie over it by the sequence
  double expert_capacity; // fsdp_graph.expert_capacity
  int expert_blocks;      // in which a layer's experts are gathered (expert_blocks.h); 0: 1
  const fsdp_sharding *sharding;              // must outlive the plan; NULL: as strategy and mesh say
  const fsdp_given_strategies *op_strategies; // in place of rules; must outlive the plan; NULL: none
  fsdp_wrap_policy wrap;
  bool cpu_offload;
  fsdp_saving saving; // what layers recompute and offload; empty: all is kept
  int prefetch;       // wrapped modules gathered ahead
  fsdp_accumulate accumulate;
  fsdp_dtype param_dtype, reduce_dtype, master_dtype, moment_dtype;
  float grad_clip;  // 0: off
  float norm_limit; // with clipping: a step with a norm above it is skipped; 0: only one that is not finite
  fsdp_optimizer_kind optimizer; // of the parameters that train
  fsdp_hyper hyper;
  bool evaluation;      // plan an evaluation section too
  bool evaluation_only; // a step is an evaluation: there is no backward, no update, and of the state the
                        // parameters alone. Of one micro-batch, without `evaluation`
  bool logits;          // an evaluation also gives the logits of one row
  bool check;           // plan a check section too, if there are replicas to compare
  bool snapshot;        // plan a snapshot section too, and host memory for it
  bool exchange; // plan an exchange section too, if replicas load slices or low-precision copies are kept;
                 // under zero1 there always is one
  bool poison;   // fill memory that is free, or not yet written, with signalling NaNs (tests)
  // What a rank may take, with what lies beside the device's arena: addresses are packed so that it fits, and
  // where there is room, so that fewer instructions wait for memory to be free. All 0: unknown.
  fsdp_memory_limits limits;
  bool draft;    // for a search: addresses are a first attempt, and nothing is proved
  bool peaks;    // with `draft`: only the peaks are wanted, so that waits are left out too
  bool unproved; // for a search: addresses are final, and waits and proof are left to fsdp_plan_prove
  const fsdp_plan_backend *backend;
  fsdp_op_gpu gpu;     // with a GPU's backend: the one that is planned for; a plan's own copy is complete
  bool copies_gathers; // for prices: GPUs' copy engines make gathers where all ranks are on one node
} fsdp_plan_config;

// ---- The program

// Where a unit's state lies: tensors of the program, -1 if the plan has none.
typedef struct fsdp_unit_state {
  const fsdp_optimizer *optimizer;
  int slot[FSDP_SLOTS_MAX];     // the optimizer's, shards
  int copy;                     // of slot 0 in param dtype (no with bf16, offload with bf16)
  int whole;                    // the unit's parameters in param dtype, of all shards (zero1)
  int grad_shard;               // what the update reads
  int snapshot[FSDP_SLOTS_MAX]; // this rank's slices of the slots in host memory, which a snapshot fills
} fsdp_unit_state;

// Makes the program and, by unit, *unit_state; the caller owns both. `fates`: of the graph's values.
fsdp_program *fsdp_schedule(const fsdp_plan_config *config, const fsdp_fate *fates, const fsdp_graph *graph,
                            const fsdp_units *units, fsdp_unit_state **unit_state);

// The greatest norm that is applied (FSDP_NORM_SKIPS): the plan's limit or, without one, the greatest number.
static inline float fsdp_plan_norm_limit(const fsdp_plan_config *config) {
  return config->norm_limit > 0 ? config->norm_limit : FLT_MAX;
}

const char *fsdp_strategy_name(fsdp_strategy strategy);
