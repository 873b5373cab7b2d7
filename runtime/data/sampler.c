#include "runtime/data/sampler.h"

#include "runtime/base/check.h"
#include "runtime/base/random.h"

#include <math.h>

fsdp_status fsdp_sampler_hold_out(fsdp_sampler *sampler, double amount, fsdp_error *error) {
  double count = amount < 1 ? fmax(round(amount * (double)sampler->sample_count), 1) : amount;
  if (!(amount >= 0) || count != floor(count))
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "%g samples cannot be held out for validation; give a part below 1, or a whole number",
                     amount);
  sampler->held_out = 0;
  if (amount == 0) return FSDP_OK;
  if (count > (double)(sampler->sample_count - sampler->global_batch))
    return fsdp_fail(
        error, FSDP_ERR_OPTION,
        "holding out %.0f of %lld samples for validation leaves less than a step of %lld to train "
        "on; hold out fewer, or lower --seq-length or --batch-size",
        count, (long long)sampler->sample_count, (long long)sampler->global_batch);
  sampler->held_out = (int64_t)count;
  return FSDP_OK;
}

static int64_t trained_on(const fsdp_sampler *sampler) {
  FSDP_CHECK(sampler->held_out >= 0 && sampler->held_out <= sampler->sample_count,
             "%lld of %lld samples held out", (long long)sampler->held_out, (long long)sampler->sample_count);
  return sampler->sample_count - sampler->held_out;
}

int64_t fsdp_sampler_steps_per_epoch(const fsdp_sampler *sampler) {
  FSDP_CHECK(sampler->global_batch >= 1, "a global batch of %lld", (long long)sampler->global_batch);
  return trained_on(sampler) / sampler->global_batch;
}

int64_t fsdp_sampler_steps(const fsdp_sampler *sampler, double epochs) {
  const int64_t each = fsdp_sampler_steps_per_epoch(sampler);
  const double steps = epochs * (double)each;
  if (steps > 0x1p62) return INT64_MAX;
  if (epochs == floor(epochs)) return (int64_t)epochs * each;
  return (int64_t)ceil(steps * (1 - 1e-12)); // 0.1 * 30 is a little more than 3
}

int64_t fsdp_sampler_position(const fsdp_sampler_part *part, int64_t i) {
  FSDP_CHECK(part->rank >= 0 && part->rank < part->ranks && i >= 0 && i < part->batch,
             "rank %lld of %lld, sequence %lld of %lld", (long long)part->rank, (long long)part->ranks,
             (long long)i, (long long)part->batch);
  return (part->micro_batch * part->ranks + part->rank) * part->batch + i;
}

// The sample at `index` of the permutation that separates held-out samples, which come first, from the
// others.
static int64_t divided(const fsdp_sampler *sampler, int64_t index) {
  return fsdp_random_permute(sampler->seed, fsdp_random_stream("validation"), sampler->sample_count, index);
}

int64_t fsdp_sampler_sample(const fsdp_sampler *sampler, int64_t epoch, int64_t step, int64_t position) {
  FSDP_CHECK(step >= 0 && step < fsdp_sampler_steps_per_epoch(sampler), "step %lld of an epoch of %lld",
             (long long)step, (long long)fsdp_sampler_steps_per_epoch(sampler));
  FSDP_CHECK(position >= 0 && position < sampler->global_batch, "position %lld of %lld", (long long)position,
             (long long)sampler->global_batch);
  // The permutation's rounds use the stream's top bits; an epoch number only ever reaches the lower ones.
  uint64_t stream = fsdp_random_stream("data order") ^ (uint64_t)epoch;
  int64_t index = fsdp_random_permute(sampler->seed, stream, trained_on(sampler),
                                      step * sampler->global_batch + position);
  return sampler->held_out ? divided(sampler, sampler->held_out + index) : index;
}

int64_t fsdp_sampler_validation_steps(const fsdp_sampler *sampler) {
  FSDP_CHECK(sampler->global_batch >= 1, "a global batch of %lld", (long long)sampler->global_batch);
  return (sampler->held_out + sampler->global_batch - 1) / sampler->global_batch;
}

int64_t fsdp_sampler_validation_sample(const fsdp_sampler *sampler, int64_t step, int64_t position) {
  FSDP_CHECK(step >= 0 && step < fsdp_sampler_validation_steps(sampler), "step %lld of an evaluation of %lld",
             (long long)step, (long long)fsdp_sampler_validation_steps(sampler));
  FSDP_CHECK(position >= 0 && position < sampler->global_batch, "position %lld of %lld", (long long)position,
             (long long)sampler->global_batch);
  int64_t index = step * sampler->global_batch + position;
  return index < sampler->held_out ? divided(sampler, index) : FSDP_SAMPLER_NONE;
}
