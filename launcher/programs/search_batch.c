#include "launcher/programs/search_batch.h"

#include "launcher/programs/run_length.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"

#include <stdio.h>

#define STEP_TOKENS_MAX (INT64_C(4) << 20) // beyond, training gains little from a larger batch
#define NEAR            0.95               // of the most tokens per second
#define MUCH_FASTER     0.6                // a plan with less than this share of another's tokens per second
#define WASTE_MIN       0.3                // exposed communication and copies below which no other can be

// The largest batch that is tried, of at most `most` sequences: a power of two times the ranks, or a part of
// them if sequences are long or few.
static int64_t largest_batch(const fsdp_search_config *config, int64_t most) {
  int64_t batch = config->ranks;
  most = fsdp_min_i64(most, STEP_TOKENS_MAX / config->base.seq);
  while (2 * batch <= most) batch *= 2;
  while (batch % 2 == 0 && batch > most) batch /= 2;
  return batch;
}

static double rate(const fsdp_search_result *result) {
  return result->count ? result->plans[0].tokens_per_s : 0;
}

// Coarse: the tokens per second alone are compared.
static fsdp_status search_at(const fsdp_search_job *job, int64_t batch, fsdp_search_result *result,
                             fsdp_error *error) {
  fsdp_search_config config = job->config;
  config.global_batch = batch;
  config.coarse = true;
  return fsdp_search_run(&config, result, error);
}

static fsdp_status choose_batch(fsdp_search_job *job, int64_t most, fsdp_search_found *found,
                                fsdp_error *error) {
  int enough = 0, few = 1; // halvings of `most` with which tokens per second are near it, and are not
  while ((most >> few) << few == most && most >> few > 0) few++;
  fsdp_search_result result;
  fsdp_status status = search_at(job, most, &result, error);
  if (status) return status;
  const double best = rate(&result);
  fsdp_search_result_release(&result);
  while (best > 0 && few - enough > 1) {
    const int halved = (enough + few) / 2;
    // A batch that no plan divides is skipped: the answer is a larger one then.
    if (search_at(job, most >> halved, &result, error)) result = (fsdp_search_result){0};
    if (rate(&result) >= NEAR * best)
      enough = halved;
    else
      few = halved;
    fsdp_search_result_release(&result);
  }
  job->config.global_batch = most >> enough;
  status = fsdp_search_run(&job->config, &found->result, error);
  snprintf(
      found->notes[found->note_count++], FSDP_SEARCH_NOTE_BYTES,
      "global batch: %s sequence%s (%s tokens) a step, the least within 5%% of the tokens per second with "
      "%s%s; fix another one with --global-batch",
      fsdp_print_int(most >> enough).text, fsdp_plural(most >> enough),
      fsdp_print_int((most >> enough) * job->config.base.seq).text, fsdp_print_int(most).text,
      most < largest_batch(&job->config, INT64_MAX) ? ", which the run's data or --tokens fill" : "");
  return status;
}

// Whether a plan waits enough for another precision or batch to be much faster.
static bool wastes(const fsdp_search_plan *plan) {
  return plan->bound != FSDP_BOUND_COMPUTE || plan->comm_s + plan->copies_s > WASTE_MIN * plan->step_s;
}

// Notes `change` if a search of `config` finds a plan that is much faster. Nothing else is looked for.
static void try_other(fsdp_search_config *config, const char *change, fsdp_search_found *found) {
  fsdp_search_result other;
  fsdp_error ignored;
  const double now = rate(&found->result);
  config->coarse = true;
  config->below_s = MUCH_FASTER * (double)(config->global_batch * config->base.seq) / now;
  if (fsdp_search_run(config, &other, &ignored) != FSDP_OK) return;
  const double then = rate(&other);
  if (now < MUCH_FASTER * then)
    snprintf(found->notes[found->note_count++], FSDP_SEARCH_NOTE_BYTES,
             "with %s a search finds %s tokens/s, %.1f times as many", change,
             fsdp_print_int((int64_t)then).text, then / now);
  fsdp_search_result_release(&other);
}

// Options with which the best plan would be much faster.
static void note_faster(const fsdp_options *options, const fsdp_search_job *job, bool given, int64_t most,
                        fsdp_search_found *found) {
  if (!wastes(&found->result.plans[0])) return;
  if (given && job->config.global_batch < most) {
    fsdp_search_config larger = job->config;
    char change[64];
    larger.global_batch = most;
    snprintf(change, sizeof change, "--global-batch %lld", (long long)most);
    try_other(&larger, change, found);
  }
  const bool open = !fsdp_options_given(options, "master-dtype") &&
                    !fsdp_options_given(options, "moment-dtype") &&
                    !fsdp_options_given(options, "reduce-dtype");
  if (!open || job->config.base.param_dtype != FSDP_BF16) return;
  fsdp_search_config lower = job->config;
  lower.base.master_dtype = lower.base.moment_dtype = lower.base.reduce_dtype = FSDP_BF16;
  try_other(&lower, "--master-dtype bf16 --moment-dtype bf16 --reduce-dtype bf16", found);
}

static fsdp_status find_steps(const fsdp_options *options, const fsdp_search_job *job,
                              fsdp_search_found *found, fsdp_error *error) {
  return fsdp_run_length_find(options, &job->setup, &job->config.base.model, job->config.global_batch,
                              &found->steps, error);
}

fsdp_status fsdp_search_find(const fsdp_options *options, fsdp_search_job *job, fsdp_search_found *found,
                             fsdp_error *error) {
  *found = (fsdp_search_found){.note_count = 0};
  const bool given = fsdp_options_given(options, "global-batch") ||
                     fsdp_options_given(options, "batch-size") || fsdp_options_given(options, "grad-accum");
  int64_t most;
  // What reads the data comes before what takes longer.
  fsdp_status status = fsdp_run_length_most(options, &job->setup, &job->config.base.model, &most, error);
  if (status == FSDP_OK && given) status = find_steps(options, job, found, error);
  if (status) return status;
  most = largest_batch(&job->config, most);
  status =
      given ? fsdp_search_run(&job->config, &found->result, error) : choose_batch(job, most, found, error);
  if (status) return status;
  if (!found->result.count) return fsdp_search_fail_unfit(job, &found->result, error);
  note_faster(options, job, given, most, found);
  if (!given) status = find_steps(options, job, found, error);
  const int64_t step_tokens = job->config.global_batch * job->config.base.seq;
  if (fsdp_run_length_note(options, step_tokens, found->notes[found->note_count])) found->note_count++;
  return status;
}
