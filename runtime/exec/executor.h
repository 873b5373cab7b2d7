// The executor: runs a plan's step program on a device, with communicators. A loop and a switch, no policy.
//
//   run_step ─► the caller's thread walks the sections in order and puts each instruction, behind its waits,
//               onto its stream; streams run them; it sleeps until PUBLISH has handed out the results
//               (updates may still be running then; the next step's instructions queue behind them)
//
// No barrier between sections or steps. Everything is allocated and every operand resolved to an address at
// creation. One thread calls all functions here; callbacks run on the host stream's thread.
#pragma once

#include "kernels/kernels.h"
#include "runtime/comm/comm.h"
#include "runtime/device/device.h"
#include "runtime/exec/measure.h"
#include "runtime/exec/step_times.h"
#include "runtime/plan/plan.h"

typedef struct fsdp_executor fsdp_executor;

// What the program asks of the caller, in the order of the program, on the host stream's thread.
typedef struct fsdp_executor_callbacks {
  void *context;
  // The step's scalars (learning rate, ...; FSDP_SCALAR_ONE is already set) and this rank's number of counted
  // targets over all micro-batches. In an evaluation, the number of all ranks' batches.
  void (*feed_step)(void *context, float scalars[FSDP_SCALAR_COUNT], float *target_count);
  // The next micro-batch: batch * seq numbers for each input of the graph, NULL for those that it does not
  // have. Targets are FSDP_TARGET_IGNORED if the loss does not count them.
  void (*feed_batch)(void *context, int32_t *const inputs[FSDP_INPUT_COUNT]);
  // The step's results: the sum of the losses, and the norm, NaN if the program has none (evaluation). May be
  // NULL.
  void (*publish)(void *context, float loss, float grad_norm);
  // Before an instruction that is not poison, on its stream's thread, with its operands' addresses (tests
  // look at gradients here). May be NULL.
  void (*observe)(void *context, const fsdp_instr *instr, const fsdp_view *operands);
} fsdp_executor_callbacks;

typedef struct fsdp_executor_config {
  const fsdp_plan *plan; // outlives the executor, as do device and comms
  int rank;
  fsdp_device *device;                // of at least the plan's arenas
  const fsdp_kernel_backend *kernels; // of the device's queues; NULL: it has none
  fsdp_comm *comms[FSDP_COMMS_MAX];   // those of the program, by its index
  fsdp_executor_callbacks callbacks;
  uint64_t seed;            // of stochastic rounding
  bool measure;             // record accessed bytes (fsdp_executor_step_stats gives valley and peak)
  bool profile;             // record times
  fsdp_traced_steps traced; // with `profile`: the steps of which a timeline is made
} fsdp_executor_config;

typedef struct fsdp_step_result {
  int64_t step;          // counted from 1 by this executor
  float loss, grad_norm; // the sum of the losses
  const float *losses;   // each of the graph's losses, and then its statistics; until the next step
} fsdp_step_result;

typedef struct fsdp_step_stats {
  fsdp_measurement memory; // zero unless config.measure
  fsdp_step_sums sums;     // zero unless config.profile
  fsdp_exposure exposure;  // the same (fsdp_step_times_measure); the pointer until the next statistics
} fsdp_step_stats;

// The groups of a rank that the program's communicators join, by its index; returns their number.
int fsdp_executor_groups(const fsdp_program *program, int rank, fsdp_comm_group groups[FSDP_COMMS_MAX]);

// Resolves every operand. `config` is copied; the state is what the arenas hold (fsdp_state_fill).
fsdp_executor *fsdp_executor_create(const fsdp_executor_config *config);
void fsdp_executor_destroy(fsdp_executor *executor); // drains first; NULL is allowed

// Issues one step and returns when its results are published.
void fsdp_executor_run_step(fsdp_executor *executor, fsdp_step_result *result);

// The same in two parts: what the caller does between them, other than issue, takes none of the step's time.
void fsdp_executor_begin_step(fsdp_executor *executor);
void fsdp_executor_end_step(fsdp_executor *executor, fsdp_step_result *result);

// Issues the evaluation section once and returns when its loss is published. The plan must have it.
// That of a plan of evaluations alone is a step, with statistics as any.
void fsdp_executor_run_evaluation(fsdp_executor *executor, float *loss);

// The same of a plan with logits, for those of row `row` of the micro-batch of the one rank (or those with
// the same rows) that has it; the others give FSDP_NO_ROW. Every rank gets them, fp32, one for each entry
// of the vocabulary. Rows lie as fsdp_rows_row says.
#define FSDP_NO_ROW (-1)
void fsdp_executor_run_logits(fsdp_executor *executor, int64_t row, float *logits);

// Steps issued so far.
int64_t fsdp_executor_steps(const fsdp_executor *executor);

// Issues the check section once and returns when `digests` (fsdp_plan_digest_count of them) are filled. The
// plan must have it.
void fsdp_executor_run_check(fsdp_executor *executor, uint64_t *digests);

// Issues the snapshot section once and returns immediately. The copies overlap with later instructions;
// updates wait for them. When they are complete, `complete` is called, possibly on a driver thread; it must
// return soon and not call the device. The copies stay unchanged until the next snapshot begins. The plan
// must have the section.
void fsdp_executor_begin_snapshot(fsdp_executor *executor, void (*complete)(void *argument), void *argument);

// Waits until the snapshot that was begun last is complete; nothing if none was.
void fsdp_executor_end_snapshot(fsdp_executor *executor);

// Runs the exchange section once, after every rank has loaded its slices, or filled its shards; returns when
// the streams are idle. Does nothing if the plan has none.
void fsdp_executor_run_exchange(fsdp_executor *executor);

// Waits until every stream is idle.
void fsdp_executor_drain(fsdp_executor *executor);

// Statistics of the newest step or the one before; older ones are not kept. Sleeps until the step's last
// instruction is complete; asking for step k after step k + 1 has run does not wait. False with a message if
// the access trace found an error (an access outside the operands, two live buffers on the same bytes).
bool fsdp_executor_step_stats(fsdp_executor *executor, int64_t step, fsdp_step_stats *stats, char *message,
                              int message_bytes);

// The timeline of the traced steps, as fsdp_step_times_timeline: once statistics of the last were asked for,
// and of every one before in order.
const fsdp_timeline *fsdp_executor_timeline(fsdp_executor *executor, int64_t *origin_ns);

// The address of a tensor of the program. The streams must be idle when its bytes are read.
void *fsdp_executor_tensor(const fsdp_executor *executor, int tensor);

// What the executor was created with.
const fsdp_executor_config *fsdp_executor_config_of(const fsdp_executor *executor);
