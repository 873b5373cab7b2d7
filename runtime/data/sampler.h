// The order of samples in an epoch: a pure function of the seed, the epoch and the global batch. Any step is
// found in O(1), and a resumed run needs only its number.
//
// An epoch is a permutation of the training samples, cut into steps of `global_batch` consecutive positions;
// a last partial batch is dropped (its samples come again in the next epoch's order). Within a step
//
//   position = (micro_batch * ranks + rank) * batch + i,   0 <= i < batch
//
// so the set of samples of a step, and so its loss, depends on the global batch alone and never on how it is
// split: 8 ranks x 1 and 2 ranks x 4 micro-batches see the same samples in the same step.
//
// Samples may be held out for validation: which ones depends only on the seed, their number and the number of
// all samples. An evaluation visits each exactly once, in the same cut of positions; past the last it yields
// FSDP_SAMPLER_NONE, so that every rank takes part in each of its batches:
//
//   samples, permuted once by the seed:   h h h h | t t t t t t t t t t t t
//                                         held out   trained on, permuted again in each epoch
//
// Separate validation data is a sampler of that data with every sample held out.
#pragma once

#include "runtime/base/status.h"

#include <stdint.h>

typedef struct fsdp_sampler {
  uint64_t seed;
  int64_t sample_count, global_batch; // of all data; 1 <= global_batch <= sample_count - held_out to train
  int64_t held_out;                   // samples for validation, 0: none
} fsdp_sampler;

// No sample: FSDP_DATASET_NO_SAMPLE.
#define FSDP_SAMPLER_NONE (-1)

// One rank's part of one micro-batch.
typedef struct fsdp_sampler_part {
  int64_t ranks, rank; // data-parallel ones: all of them but those that share a tensor-parallel group
  int64_t micro_batch;
  int64_t batch; // sequences of a micro-batch on one rank
} fsdp_sampler_part;

// Sets `held_out` from what a user gave: a fraction of all samples if below 1 (rounded, at least one), else a
// number of samples; 0 is none. FSDP_ERR_OPTION if it is negative, not a whole number, or leaves less than
// one step to train on.
fsdp_status fsdp_sampler_hold_out(fsdp_sampler *sampler, double amount, fsdp_error *error);

// Whole global batches per epoch.
int64_t fsdp_sampler_steps_per_epoch(const fsdp_sampler *sampler);

// Steps of `epochs` epochs, also of a part of one: rounded up, as Transformers rounds them, so at least one.
// INT64_MAX if there are more than 2^62.
int64_t fsdp_sampler_steps(const fsdp_sampler *sampler, double epochs);

// The position in the step of sequence `i` of a part.
int64_t fsdp_sampler_position(const fsdp_sampler_part *part, int64_t i);

// The sample at `position` (in [0, global_batch)) of step `step` (in [0, steps per epoch)) of `epoch`, both
// from 0.
int64_t fsdp_sampler_sample(const fsdp_sampler *sampler, int64_t epoch, int64_t step, int64_t position);

// Global batches of one evaluation, the last one padded.
int64_t fsdp_sampler_validation_steps(const fsdp_sampler *sampler);

// The held-out sample at `position` of step `step` of an evaluation, or FSDP_SAMPLER_NONE past the last.
int64_t fsdp_sampler_validation_sample(const fsdp_sampler *sampler, int64_t step, int64_t position);
