// A trial: a few training steps of a plan on as many ranks as its mesh has, each a thread of this process,
// with drawn weights and tokens, and everything that came of it whole.
//
// Weights depend on seed and names alone; tokens on seed, step and sequence alone. So trials of one model
// with one global batch (batch * micro-batches * parts of the batch) see the same data on any mesh.
#pragma once

#include "runtime/exec/session.h"
#include "runtime/exec/state.h"

typedef struct fsdp_trial_rank {
  int rank;
  fsdp_session session;
  char failure[512]; // a hook's, or of the access trace; empty: none
} fsdp_trial_rank;

// Called on every rank; each may be NULL.
typedef struct fsdp_trial_hooks {
  void *context;
  void (*filled)(void *context, fsdp_trial_rank *rank); // with weights, before the first step
  // After each step, from 0, while its streams still run.
  void (*stepped)(void *context, fsdp_trial_rank *rank, int step);
  void (*ended)(void *context, fsdp_trial_rank *rank); // all is complete, the evaluation too
  // As fsdp_executor_callbacks.observe.
  void (*observe)(void *context, const fsdp_trial_rank *rank, const fsdp_instr *instr,
                  const fsdp_view *operands);
} fsdp_trial_hooks;

typedef struct fsdp_trial_config {
  const fsdp_plan *plan; // outlives the result
  int steps;
  float lr;
  uint64_t seed;
  float spread;                       // least deviation of drawn weights, also of norms and biases
  int gradient_first, gradient_steps; // the steps whose gradients are kept, from 0
  bool evaluate;                      // after the last step, the sequences of one more; the plan has it
  int kernel_threads;                 // of each rank
  fsdp_traced_steps traced;           // by the executor's count: timed, in place of measured (last 0: none)
  const fsdp_gpu *gpu;                // for plans of one rank; NULL: a CPU
  // In place of drawn ones: weights, in fp32; tokens, targets, starts of documents and which positions hold
  // a token (with `tokens` alone: all), of all sequences of all steps, consecutive sequences of plan.seq. May
  // be NULL.
  fsdp_state_callback weights;
  void *weights_context;
  const int32_t *tokens, *targets, *starts, *real;
  fsdp_trial_hooks hooks;
} fsdp_trial_config;

// A parameter, or its gradient: whole, gathered from all shards.
typedef struct fsdp_trial_tensor {
  const char *name;
  float *values;
  int64_t numel;
} fsdp_trial_tensor;

typedef struct fsdp_trial {
  int steps, gradient_steps, param_count;
  bool moves_biases;       // of routers, by what lies in the place of their gradients: their experts' loads
  float *loss, *grad_norm; // by step, the same on every rank (checked)
  float evaluation_loss;   // the same on every rank (checked)
  // By kept step, then by parameter: before clipping, of all ranks and micro-batches. NULL: none is kept.
  fsdp_trial_tensor *gradients;
  fsdp_trial_tensor *parameters; // masters after the last step
  // By step; the same on every rank (checked). Index: step * FSDP_SPACE_COUNT + space.
  int64_t *valley_bytes, *peak_bytes;
  char failure[512]; // a rank's, or of a rank that differs from rank 0; empty: none
} fsdp_trial;

// Never NULL.
fsdp_trial *fsdp_trial_run(const fsdp_trial_config *config);
void fsdp_trial_destroy(fsdp_trial *trial); // NULL is allowed

// Whether this rank hands out its shard of a unit: one of those that hold the same.
bool fsdp_trial_hands_out(const fsdp_plan *plan, int unit, int rank);
// Element `index` of values in fp32 or bf16.
float fsdp_trial_value(const void *values, fsdp_dtype dtype, int64_t index);
// Norm of a - b over norm of b, all elements together; norm of a - b if b is 0.
double fsdp_trial_difference(const fsdp_trial_tensor *a, const fsdp_trial_tensor *b);
