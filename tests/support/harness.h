// Trains a plan on as many ranks as its mesh has, each a thread of the test, and returns the results.
//
//   harness_config config = {.steps = 3, .lr = 1e-3f};
//   ... fill config.plan (harness_small_plan gives a start) ...
//   harness_result *result = harness_train(&config);
//   ... result->loss[0], result->gradients, ...
//   harness_free(result);
//
// With FSDP_TEST_BACKEND=cuda in the environment, plans of one rank run on the GPU; plans of more ranks stay
// on the CPU.
//
// Weights depend on seed and names alone; tokens on seed, step and sequence alone. So runs with one global
// batch (batch * accumulation * parts of the batch) see the same data on any mesh.
#pragma once

#include "runtime/exec/trial.h"

typedef struct harness_config harness_config;

struct harness_config {
  fsdp_plan_config plan;
  int steps;
  float lr;
  uint64_t seed;
  int gradient_step;  // the step whose gradients are kept, from 0; negative: none
  int kernel_threads; // of each rank; 0: one
  float spread;       // least deviation of drawn weights, also of norms and biases
  bool evaluate;      // after the last step: the sequences of one more, in the plan's evaluation section
  // Instead of drawn ones: a model folder's weights; the tokens, targets, starts of documents and which
  // positions hold a token (with `tokens` alone: all), of all sequences of all steps, consecutive sequences
  // of plan.seq.
  const char *weights;
  const int32_t *tokens, *targets, *starts, *real;
  // Called on every rank after each step, from 0, while its streams still run. May be NULL.
  void (*after_step)(const harness_config *config, fsdp_executor *executor, int rank, int step);
  // Called on every rank before an instruction, on its stream's thread. May be NULL.
  void (*before_instr)(const harness_config *config, int rank, const fsdp_instr *instr);
  // Called on every rank when its last step is complete, before a check section runs. May be NULL.
  void (*after_steps)(const harness_config *config, fsdp_executor *executor, int rank);
  // Called on every rank before each update, with its operands. May be NULL.
  void (*before_update)(const harness_config *config, const fsdp_plan *plan, int rank, int unit,
                        const fsdp_view *operands);
};

typedef fsdp_trial_tensor harness_tensor;

typedef struct harness_result {
  int steps;
  float *loss, *grad_norm;    // by step, the same on every rank (checked)
  float evaluation_loss;      // the same on every rank (checked)
  harness_tensor *gradients;  // of harness_config.gradient_step before clipping, by parameter; NULL: none
  harness_tensor *parameters; // masters after the last step
  int param_count;
  // By step; the same on every rank (checked). Index: step * FSDP_SPACE_COUNT + space.
  int64_t *measured_valley_bytes, *measured_peak_bytes;
  fsdp_memory_report planned;
  fsdp_traffic traffic;
  uint64_t *digests; // with plan.check and replicas: of all ranks, in their order; NULL: none
  char failure[512]; // a mismatch in the trace, or a rank that differs from rank 0; empty: none
  fsdp_plan *plan;
  fsdp_trial *trial; // owns the values; NULL without a plan
} harness_result;

// A plan of a two-layer model with grouped-query attention, an odd vocabulary and 7 sequences of 12 tokens;
// everything else as the programs' defaults, in fp32, on `ranks` shards.
fsdp_plan_config harness_small_plan(int ranks);

// Never NULL; a plan that cannot be made, or ranks that disagree, set result->failure.
harness_result *harness_train(const harness_config *config);
void harness_free(harness_result *result);

// fsdp_trial_difference.
double harness_difference(const harness_tensor *a, const harness_tensor *b);

// True if every step measured what was planned, in both spaces; otherwise `message` names the difference.
bool harness_memory_as_planned(const harness_result *result, char *message, int message_bytes);

// The root of the sum of squares.
double harness_norm(const harness_tensor *tensor);

// ---- Whether two runs train alike

bool harness_near(double found, double expected, double tolerance); // relative

// How far apart they may be, relative to the other run's. A gradient that is zero but for rounding has errors
// of the size that the rounding of its summands has, whatever its own norm is.
typedef struct harness_tolerance {
  double loss, gradient, value; // of each; `gradient` of norms of a step too
  double noise;                 // of a tensor's gradient besides, relative to the norm of all
} harness_tolerance;

// What differs by more of losses, norms, gradients and parameters, or memory from what was planned; NULL:
// nothing. Static.
const char *harness_compare(const harness_result *mine, const harness_result *reference,
                            const harness_tolerance *tolerance);
// The same of the evaluation's loss.
const char *harness_compare_evaluation(const harness_result *mine, const harness_result *reference,
                                       double tolerance);

// ---- Whether a plan on several ranks trains as one rank does with the whole batch

enum { HARNESS_SAME_STEPS = 2 };

// The plan's run, in fp32; `tokens` (and targets) of all sequences as harness_config has them, or NULL: then
// with an evaluation.
harness_result *harness_train_same(const fsdp_plan_config *plan, const int32_t *tokens);
// One rank with the whole batch.
harness_result *harness_train_alone(const fsdp_plan *plan, const int32_t *tokens);
// What differs of losses, norms, gradients, or memory from what was planned; NULL: nothing. Static.
const char *harness_same_difference(const harness_result *mine, const harness_result *reference);

// ---- Routed experts

// Two layers of five experts, two for each row, with an evaluation, on a mesh such as "fsdp=2,expert=2". The
// norm is always clipped.
fsdp_plan_config harness_routed_plan(const char *mesh);

// The same of sigmoid scores with biases, where a row takes all experts of the better of `groups` groups of
// `each` experts: with as many ranks on the axis expert, all of its experts are one rank's.
fsdp_plan_config harness_grouped_plan(const char *mesh, int groups, int each);

// Fails the test, with the plan's description, unless it trains as one rank does with the whole batch;
// `tokens` as in harness_train_same.
void harness_expect_same(const fsdp_plan_config *config, const int32_t *tokens);

// Rows that each expert of a layer had in the kept step, from the "gradient" of its router's bias, which is
// experts times these less all routed rows.
void harness_rows_of_experts(const harness_result *result, int layer, int64_t *rows);

// ---- Gradients against central differences of the loss in double

// A step's mean loss, for all parameters one after another.
typedef double harness_loss(const double *params, const int32_t *tokens, const int32_t *targets);
// All of them after one step, when weights are not ones, nor biases zeros. To be freed.
double *harness_params_after_step(harness_config config);
// Compares the gradients of the run's second step, which begins with `params`: of every `every`th of them.
void harness_check_gradients(harness_config config, double *params, harness_loss *loss, int64_t every);
