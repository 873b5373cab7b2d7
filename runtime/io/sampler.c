#include "runtime/io/sampler.h"

#include "runtime/base/check.h"
#include "runtime/base/random.h"

int64_t fsdp_sampler_steps_per_epoch(const fsdp_sampler *sampler) {
  FSDP_CHECK(sampler->global_batch >= 1, "a global batch of %lld", (long long)sampler->global_batch);
  return sampler->sample_count / sampler->global_batch;
}

int64_t fsdp_sampler_position(const fsdp_sampler_part *part, int64_t i) {
  FSDP_CHECK(part->rank >= 0 && part->rank < part->ranks && i >= 0 && i < part->batch,
             "rank %lld of %lld, sequence %lld of %lld", (long long)part->rank, (long long)part->ranks,
             (long long)i, (long long)part->batch);
  return (part->micro_batch * part->ranks + part->rank) * part->batch + i;
}

int64_t fsdp_sampler_sample(const fsdp_sampler *sampler, int64_t epoch, int64_t step, int64_t position) {
  FSDP_CHECK(step >= 0 && step < fsdp_sampler_steps_per_epoch(sampler), "step %lld of an epoch of %lld",
             (long long)step, (long long)fsdp_sampler_steps_per_epoch(sampler));
  FSDP_CHECK(position >= 0 && position < sampler->global_batch, "position %lld of %lld", (long long)position,
             (long long)sampler->global_batch);
  // The permutation's rounds use the stream's top bits; an epoch number only ever reaches the lower ones.
  uint64_t stream = fsdp_random_stream("data order") ^ (uint64_t)epoch;
  return fsdp_random_permute(sampler->seed, stream, sampler->sample_count,
                             step * sampler->global_batch + position);
}
