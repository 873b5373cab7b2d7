// Which sample of the data stands where in an epoch: a pure function of the seed, the epoch and the global
// batch.
//
// An epoch is a permutation of all samples, cut into steps of `global_batch` consecutive positions; a last
// partial batch is dropped (its samples come again in the next epoch's order). Within a step
//
//   position = (micro_batch * ranks + rank) * batch + i,   0 <= i < batch
//
// so the set of samples of a step, and so its loss, depends on the global batch alone and never on how it is
// split: 8 ranks x 1 and 2 ranks x 4 micro-batches see the same samples in the same step.
#pragma once

#include <stdint.h>

typedef struct fsdp_sampler {
  uint64_t seed;
  int64_t sample_count, global_batch; // 1 <= global_batch <= sample_count
} fsdp_sampler;

// One rank's part of one micro-batch.
typedef struct fsdp_sampler_part {
  int64_t ranks, rank; // data-parallel ones: all of them but those that share a tensor-parallel group
  int64_t micro_batch;
  int64_t batch; // sequences of a micro-batch on one rank
} fsdp_sampler_part;

// Whole global batches of an epoch.
int64_t fsdp_sampler_steps_per_epoch(const fsdp_sampler *sampler);

// The position in the step of sequence `i` of a part.
int64_t fsdp_sampler_position(const fsdp_sampler_part *part, int64_t i);

// The sample at `position` (in [0, global_batch)) of step `step` (in [0, steps per epoch)) of `epoch`, both
// from 0.
int64_t fsdp_sampler_sample(const fsdp_sampler *sampler, int64_t epoch, int64_t step, int64_t position);
