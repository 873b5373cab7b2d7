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
// Data of which a record may lie in several samples has them held out by records (fsdp_dataset_hold_out): the
// last samples of all, or of each group.
//
// Separate validation data is a sampler of that data with every sample held out.
//
// Groups of samples can be mixed by shares. An epoch has as many positions as there are samples to train on;
// of these each group has its share (rounded so that they add up). Their permutation says which group a
// position takes from; the group's samples come in an order of its own, all of them before any comes again:
//
//   epoch 0   b a a a b a a        slot k of a group in epoch e is draw e * quota + k of it; draw d is sample
//   epoch 1   a a b a a b a        d % count of the permutation of its pass d / count
//
// So any step is found in O(groups), and a run sees a sample of a group at most once more than any other of
// it. Each group holds out the same part of its samples.
#pragma once

#include "runtime/base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define FSDP_SAMPLER_GROUPS_MAX 64

typedef struct fsdp_sampler_group {
  double share;         // of an epoch; all shares add up to 1
  int64_t first, count; // its samples
  int64_t held_out;     // of these; set by the sampler, as is the next
  int64_t quota;        // positions of an epoch
} fsdp_sampler_group;

typedef struct fsdp_sampler {
  uint64_t seed;
  int64_t sample_count, global_batch; // of all data; 1 <= global_batch <= sample_count - held_out to train
  int64_t held_out;                   // samples for validation, 0: none
  bool held_last;                     // these are the last, of all samples or of each group
  int group_count;                    // 0: all samples are alike
  fsdp_sampler_group groups[FSDP_SAMPLER_GROUPS_MAX];
} fsdp_sampler;

// No sample: FSDP_DATASET_NO_SAMPLE.
#define FSDP_SAMPLER_NONE (-1)

// One rank's part of one micro-batch.
typedef struct fsdp_sampler_part {
  int64_t ranks, rank; // data-parallel ones: all of them but those that share a tensor-parallel group
  int64_t micro_batch;
  int64_t batch; // sequences of a micro-batch on one rank
} fsdp_sampler_part;

// Mixes the groups, which have all samples in their order, by their shares. FSDP_ERR_OPTION if there are more
// than FSDP_SAMPLER_GROUPS_MAX, or if an epoch has too few positions for a group's share to be one.
fsdp_status fsdp_sampler_mix(fsdp_sampler *sampler, const fsdp_sampler_group *groups, int count,
                             fsdp_error *error);

// Sets `held_out` from what a user gave: a fraction of all samples if below 1 (rounded, at least one), else a
// number of samples; 0 is none. FSDP_ERR_OPTION if it is negative, not a whole number, or leaves less than
// one step to train on, or nothing of a group.
fsdp_status fsdp_sampler_hold_out(fsdp_sampler *sampler, double amount, fsdp_error *error);

// Holds out the last held[g] samples of each group g; of all samples, if there are no groups, the last
// held[0]. FSDP_ERR_OPTION if that leaves less than one step to train on, or nothing of a group.
fsdp_status fsdp_sampler_hold_out_last(fsdp_sampler *sampler, const int64_t *held, fsdp_error *error);

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
