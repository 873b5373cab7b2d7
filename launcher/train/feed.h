// What the running program asks the launcher for: a step's scalars and micro-batches' tokens, in the
// program's order.
//
// Ranks that differ in axes that cut neither batch nor sequence (tensor) are fed the same; those that differ
// in an axis of the sequence (context) have other positions of the same sequences. A rank counts the targets
// of its own positions; the program sums the counts.
//
// The functions below are the executor's callbacks, with a feed as their context; they run on the host
// stream's thread, ahead of the compute stream, and only copy.
#pragma once

#include "kernels/kernels.h"
#include "launcher/train/learning_rate.h"
#include "launcher/train/routing.h"
#include "models/graph/op.h"
#include "runtime/comm/world.h"
#include "runtime/data/dataset.h"
#include "runtime/data/learned.h"
#include "runtime/data/sampler.h"
#include "runtime/exec/executor.h"
#include "runtime/plan/mesh/rows.h"
#include "runtime/plan/program/optimizer.h"

#include <stdatomic.h>

typedef struct fsdp_feed_config {
  const fsdp_dataset *dataset; // outlives the feed
  fsdp_sampler sampler;
  int64_t ranks, rank; // those that have different sequences, and this rank's place among them
  fsdp_rows rows;      // which position of its sequences each of a rank's rows is
  fsdp_mesh mesh;
  int world_rank;
  int64_t micro_batches;
  fsdp_learning_rate rate;
  fsdp_optimizer_kind optimizer;
  fsdp_hyper hyper;
  float norm_limit;                 // a step with a norm above it (FSDP_NORM_SKIPS) is skipped; 0: none is
  const fsdp_dataset *eval_dataset; // NULL: no evaluation
  fsdp_sampler eval_sampler;        // with a global batch of one micro-batch
  // Whose experts are given, and where those that are chosen go; NULL: not. Places of samples are then their
  // positions: spreads is false.
  fsdp_routing *replay, *record;
  uint64_t drop_seed;     // of dropout's draws
  bool loss_of_documents; // the loss is a mean over documents (learned.h), and what is counted are these
  bool spreads; // a step's samples go to ranks and micro-batches by the work of attention (spread.h)
} fsdp_feed_config;

#define FSDP_FEED_STEPS_KEPT 4

typedef struct fsdp_feed {
  fsdp_feed_config config;
  int64_t steps_fed, micro_batches_fed; // steps done before this run included
  int64_t first_step;                   // steps done before this run
  int64_t micro_batches_seen;           // of which the first router's choice was recorded
  int64_t updates;                      // steps that were not skipped, of earlier runs too: the optimizer's t
  int64_t sample_shift;      // the sampler's step (epochs one after the other) less the optimizer's
  int64_t eval_step;         // of the evaluation that is under way, or -1
  int64_t eval_target_count; // of its batch, all ranks together
  int64_t eval_counted;      // targets of the last one, or documents
  const int32_t *sampled;    // tokens so far of the text that is being sampled, NULL: none is
  int64_t sampled_count;
  // If it spreads: of step `spread_step` (-1: none yet) the position of each place's sample, and room to find
  // it.
  int64_t *spread, *spread_scratch, spread_step;
  double *work;
  fsdp_learned learned; // room, if the loss is a mean over documents; of the callbacks' thread
  _Atomic int64_t busy_ns[FSDP_FEED_STEPS_KEPT]; // time spent in the callbacks, by step
} fsdp_feed;

// Starts at step 0. The feed is handed to the executor by address and must not move. The caller destroys it.
void fsdp_feed_create(fsdp_feed *feed, const fsdp_feed_config *config);
void fsdp_feed_destroy(fsdp_feed *feed); // one of zeros is allowed

// Continues after step `step` of an earlier run, which made `updates` of them, with the samples of the
// sampler's step `step + sample_shift`. Before the first step is fed.
void fsdp_feed_seek(fsdp_feed *feed, int64_t step, int64_t updates, int64_t sample_shift);

// fsdp_executor_callbacks.feed_step and feed_batch.
void fsdp_feed_step(void *feed, float scalars[FSDP_SCALAR_COUNT], float *target_count);
void fsdp_feed_batch(void *feed, int32_t *const inputs[FSDP_INPUT_COUNT]);

// fsdp_executor_callbacks.publish: counts the step's update unless its norm says that it was skipped, before
// the next step is fed.
void fsdp_feed_publish(void *feed, float loss, float grad_norm);

// fsdp_executor_callbacks.observe, on the compute stream's thread: records what routers chose.
void fsdp_feed_observe(void *feed, const fsdp_instr *instr, const fsdp_view *operands);

// Whether a step with this norm is skipped: the rule by which the clip factor's kernel decided.
bool fsdp_feed_skips(const fsdp_feed *feed, float grad_norm);

// Between steps: evaluates on every sample of the evaluation's data, each once. The result is the mean over
// all their targets that count, whatever the number of ranks; training continues as if it had not happened.
// Called by all ranks.
double fsdp_feed_evaluate(fsdp_feed *feed, fsdp_executor *executor, fsdp_world *world);

// Between steps: the logits of the token behind `count` others, which are at most the plan's sequence, into
// `logits`, by entry of the vocabulary. Called by all ranks, with the same tokens.
void fsdp_feed_logits(fsdp_feed *feed, fsdp_executor *executor, const int32_t *tokens, int64_t count,
                      float *logits);

// How many targets this rank's sequences have in step `step` of an evaluation, on whichever ranks they lie.
int64_t fsdp_feed_eval_targets(fsdp_feed *feed, int64_t step);

// Positions of step `step` (from 0) that hold a token, and targets that count, of all ranks together.
void fsdp_feed_count(const fsdp_feed *feed, int64_t step, int64_t *real, int64_t *learned);

// Milliseconds that the data of step `step` (from 0) took; ask once, when the step is complete.
double fsdp_feed_take_ms(fsdp_feed *feed, int64_t step);
