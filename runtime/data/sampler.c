#include "runtime/data/sampler.h"

#include "runtime/base/check.h"
#include "runtime/base/random.h"

#include <math.h>
#include <stdio.h>

// ---- Groups

// Divides `total` by the shares, which add up to 1: rounded down, and what remains to the greatest
// remainders.
static void divide(int64_t total, const double *shares, int count, int64_t *out) {
  int64_t left = total;
  bool raised[FSDP_SAMPLER_GROUPS_MAX] = {false};
  for (int g = 0; g < count; g++) left -= out[g] = (int64_t)floor(shares[g] * (double)total);
  for (; left > 0; left--) {
    int greatest = -1;
    double most = -1;
    for (int g = 0; g < count; g++) {
      const double rest = shares[g] * (double)total - (double)out[g];
      if (!raised[g] && rest > most) greatest = g, most = rest;
    }
    FSDP_CHECK(greatest >= 0, "shares that do not add up to 1");
    raised[greatest] = true;
    out[greatest]++;
  }
}

// Divides the positions of an epoch.
static fsdp_status set_quotas(fsdp_sampler *sampler, fsdp_error *error) {
  double shares[FSDP_SAMPLER_GROUPS_MAX] = {0};
  int64_t quotas[FSDP_SAMPLER_GROUPS_MAX];
  const int64_t positions = sampler->sample_count - sampler->held_out;
  for (int g = 0; g < sampler->group_count; g++) shares[g] = sampler->groups[g].share;
  divide(positions, shares, sampler->group_count, quotas);
  for (int g = 0; g < sampler->group_count; g++) {
    sampler->groups[g].quota = quotas[g];
    if (quotas[g] == 0)
      return fsdp_fail(
          error, FSDP_ERR_OPTION,
          "a weight of %.3g%% gives data %d none of the %lld samples of an epoch: raise it, or leave "
          "that data out",
          100 * shares[g], g + 1, (long long)positions);
  }
  return FSDP_OK;
}

fsdp_status fsdp_sampler_mix(fsdp_sampler *sampler, const fsdp_sampler_group *groups, int count,
                             fsdp_error *error) {
  if (count > FSDP_SAMPLER_GROUPS_MAX)
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "%d weights: at most %d are mixed; join files of like weights by a pattern", count,
                     FSDP_SAMPLER_GROUPS_MAX);
  int64_t first = 0;
  for (int g = 0; g < count; g++) {
    FSDP_CHECK(groups[g].first == first && groups[g].count > 0, "group %d of samples", g);
    first += groups[g].count;
    sampler->groups[g] = groups[g];
  }
  FSDP_CHECK(first == sampler->sample_count, "%lld samples in groups", (long long)first);
  sampler->group_count = count;
  return set_quotas(sampler, error);
}

static fsdp_status hold_out_of_groups(fsdp_sampler *sampler, const int64_t *held, fsdp_error *error) {
  for (int g = 0; g < sampler->group_count; g++) {
    if (held[g] >= sampler->groups[g].count)
      return fsdp_fail(
          error, FSDP_ERR_OPTION,
          "holding out %lld samples for validation leaves none of the %lld of data %d to train on; "
          "hold out fewer",
          (long long)sampler->held_out, (long long)sampler->groups[g].count, g + 1);
    sampler->groups[g].held_out = held[g];
  }
  return set_quotas(sampler, error);
}

// The same part of each group.
static fsdp_status hold_out_alike(fsdp_sampler *sampler, fsdp_error *error) {
  double shares[FSDP_SAMPLER_GROUPS_MAX] = {0};
  int64_t held[FSDP_SAMPLER_GROUPS_MAX];
  for (int g = 0; g < sampler->group_count; g++)
    shares[g] = (double)sampler->groups[g].count / (double)sampler->sample_count;
  divide(sampler->held_out, shares, sampler->group_count, held);
  return hold_out_of_groups(sampler, held, error);
}

static uint64_t group_stream(const char *what, int group) {
  char name[64];
  snprintf(name, sizeof name, "%s of group %d", what, group);
  return fsdp_random_stream(name);
}

// Sample `index` of a group (-1: of all samples, which are alike) in the order in which those that are held
// out come first.
static int64_t divided(const fsdp_sampler *sampler, int g, int64_t index) {
  const fsdp_sampler_group all = {.count = sampler->sample_count, .held_out = sampler->held_out};
  const fsdp_sampler_group *group = g < 0 ? &all : &sampler->groups[g];
  const int64_t held = group->held_out;
  if (sampler->held_last) return group->first + (index < held ? group->count - held + index : index - held);
  const uint64_t stream = g < 0 ? fsdp_random_stream("validation") : group_stream("validation", g);
  return group->first + fsdp_random_permute(sampler->seed, stream, group->count, index);
}

// The sample in `slot` of the epoch's positions, which lie group by group.
static int64_t mixed(const fsdp_sampler *sampler, int64_t epoch, int64_t slot) {
  int g = 0;
  while (slot >= sampler->groups[g].quota) slot -= sampler->groups[g++].quota;
  const fsdp_sampler_group *group = &sampler->groups[g];
  const int64_t count = group->count - group->held_out, draw = epoch * group->quota + slot;
  const uint64_t stream = group_stream("data order", g) ^ (uint64_t)(draw / count);
  const int64_t index = fsdp_random_permute(sampler->seed, stream, count, draw % count);
  return group->held_out ? divided(sampler, g, group->held_out + index) : group->first + index;
}

// Held-out sample `index` of all groups.
static int64_t held_out_of_groups(const fsdp_sampler *sampler, int64_t index) {
  int g = 0;
  while (index >= sampler->groups[g].held_out) index -= sampler->groups[g++].held_out;
  return divided(sampler, g, index);
}

// ---- Samples

static fsdp_status fail_too_many(const fsdp_sampler *sampler, double count, bool of_records,
                                 fsdp_error *error) {
  return fsdp_fail(
      error, FSDP_ERR_OPTION,
      "holding out %.0f of %lld samples%s for validation leaves less than a step of %lld to train "
      "on; hold out fewer, or lower --seq-length or --batch-size%s",
      count, (long long)sampler->sample_count, of_records ? ", those of whole records," : "",
      (long long)sampler->global_batch, of_records ? ", or divide records with --packing stream" : "");
}

fsdp_status fsdp_sampler_hold_out(fsdp_sampler *sampler, double amount, fsdp_error *error) {
  double count = amount < 1 ? fmax(round(amount * (double)sampler->sample_count), 1) : amount;
  if (!(amount >= 0) || count != floor(count))
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "%g samples cannot be held out for validation; give a part below 1, or a whole number",
                     amount);
  sampler->held_out = 0;
  if (amount == 0) return FSDP_OK;
  if (count > (double)(sampler->sample_count - sampler->global_batch))
    return fail_too_many(sampler, count, false, error);
  sampler->held_out = (int64_t)count;
  return sampler->group_count ? hold_out_alike(sampler, error) : FSDP_OK;
}

fsdp_status fsdp_sampler_hold_out_last(fsdp_sampler *sampler, const int64_t *held, fsdp_error *error) {
  int64_t count = held[0];
  for (int g = 1; g < sampler->group_count; g++) count += held[g];
  if (count > sampler->sample_count - sampler->global_batch)
    return fail_too_many(sampler, (double)count, true, error);
  sampler->held_out = count;
  sampler->held_last = true;
  return sampler->group_count ? hold_out_of_groups(sampler, held, error) : FSDP_OK;
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

int64_t fsdp_sampler_sample(const fsdp_sampler *sampler, int64_t epoch, int64_t step, int64_t position) {
  FSDP_CHECK(step >= 0 && step < fsdp_sampler_steps_per_epoch(sampler), "step %lld of an epoch of %lld",
             (long long)step, (long long)fsdp_sampler_steps_per_epoch(sampler));
  FSDP_CHECK(position >= 0 && position < sampler->global_batch, "position %lld of %lld", (long long)position,
             (long long)sampler->global_batch);
  // The permutation's rounds use the stream's top bits; an epoch number only ever reaches the lower ones.
  uint64_t stream = fsdp_random_stream("data order") ^ (uint64_t)epoch;
  int64_t index = fsdp_random_permute(sampler->seed, stream, trained_on(sampler),
                                      step * sampler->global_batch + position);
  if (sampler->group_count) return mixed(sampler, epoch, index);
  return sampler->held_out ? divided(sampler, -1, sampler->held_out + index) : index;
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
  if (index >= sampler->held_out) return FSDP_SAMPLER_NONE;
  return sampler->group_count ? held_out_of_groups(sampler, index) : divided(sampler, -1, index);
}
