#include "launcher/setup/document_work.h"

#include "launcher/setup/data.h"
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/data/spread.h"

#include <math.h>
#include <stdlib.h>

enum {
  SAMPLES_MAX = 4096, // whose pairs are counted, but at least those of a step
  WINDOWS = 2,        // layers without a window, and with one
};

// Pairs of a query at one of `count` positions from `first` on and a key that it sees; `starts` NULL: of a
// row that is one document.
static double pairs_of(const int32_t *starts, int64_t first, int64_t count, int64_t window) {
  double pairs = 0;
  for (int64_t query = first; query < first + count; query++) {
    int64_t low = starts ? starts[query] : 0;
    if (window > 0) low = fsdp_max_i64(low, query - window + 1);
    pairs += (double)(query - low + 1);
  }
  return pairs;
}

// The shares of pairs that are left in a group's samples, of which some are counted, evenly spread.
static void measure_group(const fsdp_dataset *dataset, const fsdp_dataset_group *group, int64_t counted,
                          int64_t window, int64_t seq, double left[WINDOWS]) {
  const int64_t count = fsdp_min_i64(group->sample_count, counted);
  const double all[WINDOWS] = {pairs_of(NULL, 0, seq, 0), pairs_of(NULL, 0, seq, window)};
  int32_t *starts = fsdp_alloc((size_t)seq * sizeof *starts);
  for (int64_t i = 0; i < count; i++) {
    const int64_t sample = group->first_sample + i * group->sample_count / count;
    fsdp_dataset_fill_starts(dataset, sample, seq, starts);
    left[0] += fsdp_dataset_sample_pairs(dataset, sample) / ((double)count * all[0]);
    left[1] += pairs_of(starts, 0, seq, window) / ((double)count * all[1]);
  }
  free(starts);
}

// Groups of samples count by their shares of what a run sees.
static void measure(const fsdp_dataset *dataset, fsdp_plan_config *config) {
  const int groups = dataset->group_count;
  config->document_work[0].left = config->document_work[1].left = 0;
  for (int g = 0; g < groups; g++) {
    const fsdp_dataset_group group = fsdp_dataset_group_at(dataset, g);
    double left[WINDOWS] = {0};
    if (groups > 1 || config->model.window > 0)
      measure_group(dataset, &group, SAMPLES_MAX / groups, config->model.window, config->seq, left);
    for (int w = 0; w < WINDOWS; w++) config->document_work[w].left += group.share * left[w];
  }
  if (groups > 1) return;
  config->document_work[0].left = dataset->how.attention; // of all samples
  if (config->model.window == 0) config->document_work[1].left = config->document_work[0].left;
}

// ---- On ranks

// A step's samples on their places, by position of the step.
typedef struct placing {
  const fsdp_dataset *dataset;
  const fsdp_plan *plan;
  fsdp_sampler sampler;
  int64_t ranks;        // those that have different sequences
  int32_t *starts;      // of a row
  double *work, *pairs; // of a sample; of (sample, part of its context group, with a window)
  int64_t *sample_at, *scratch;
} placing;

// Sums over micro-batches of the mean of all ranks, of the rank with most, and, as a mean over groups, of the
// rank of a context group with most.
typedef struct placed {
  double mean, most, of_group;
} placed;

// A part has two chunks of a row, or all of it (runtime/plan/mesh/rows.h).
static double pairs_of_part(const fsdp_rows *rows, const int32_t *starts, int64_t part, int64_t window) {
  if (rows->chunk == 0) return pairs_of(starts, 0, rows->local_seq, window);
  return pairs_of(starts, part * rows->chunk, rows->chunk, window) +
         pairs_of(starts, (2 * rows->parts - 1 - part) * rows->chunk, rows->chunk, window);
}

static double *pairs_at(const placing *p, int64_t position, int64_t part, int windowed) {
  return &p->pairs[(position * p->plan->rows.parts + part) * WINDOWS + windowed];
}

static void draw_step(const placing *p, int64_t step) {
  const fsdp_rows *rows = &p->plan->rows;
  for (int64_t position = 0; position < p->sampler.global_batch; position++) {
    const int64_t sample = fsdp_sampler_sample(&p->sampler, 0, step, position);
    p->work[position] = fsdp_dataset_sample_pairs(p->dataset, sample);
    fsdp_dataset_fill_starts(p->dataset, sample, rows->parts * rows->local_seq, p->starts);
    for (int64_t part = 0; part < rows->parts; part++)
      for (int windowed = 0; windowed < WINDOWS; windowed++)
        *pairs_at(p, position, part, windowed) =
            pairs_of_part(rows, p->starts, part, windowed ? p->plan->config.model.window : 0);
  }
  const fsdp_plan_config *c = &p->plan->config;
  fsdp_spread_work(p->work, c->micro_batches, p->ranks, c->batch, p->sample_at, p->scratch);
}

// Adds what the ranks that share sequences have in a micro-batch, whose first place is `place`; returns the
// most that one has.
static double add_group(const placing *p, int64_t place, int windowed, placed *sum) {
  const int64_t parts = p->plan->rows.parts;
  double most = 0;
  for (int64_t part = 0; part < parts; part++) {
    double pairs = 0;
    for (int64_t i = 0; i < p->plan->config.batch; i++)
      pairs += *pairs_at(p, p->sample_at[place + i], part, windowed);
    most = fmax(most, pairs);
    sum->mean += pairs / (double)(p->ranks * parts);
  }
  sum->of_group += most / (double)p->ranks;
  return most;
}

static void add_step(const placing *p, placed sums[WINDOWS]) {
  const fsdp_plan_config *c = &p->plan->config;
  for (int windowed = 0; windowed < WINDOWS; windowed++)
    for (int64_t m = 0; m < c->micro_batches; m++) {
      double most = 0;
      for (int64_t rank = 0; rank < p->ranks; rank++) {
        const fsdp_sampler_part part = {.ranks = p->ranks, .rank = rank, .micro_batch = m, .batch = c->batch};
        most = fmax(most, add_group(p, fsdp_sampler_position(&part, 0), windowed, &sums[windowed]));
      }
      sums[windowed].most += most;
    }
}

static void place_samples(placing *p, int64_t steps, placed sums[WINDOWS]) {
  const fsdp_rows *rows = &p->plan->rows;
  const size_t batch = (size_t)p->sampler.global_batch;
  p->starts = fsdp_alloc((size_t)(rows->parts * rows->local_seq) * sizeof *p->starts);
  p->work = fsdp_alloc(batch * sizeof *p->work);
  p->pairs = fsdp_alloc(batch * (size_t)rows->parts * WINDOWS * sizeof *p->pairs);
  p->sample_at = fsdp_alloc(batch * sizeof *p->sample_at);
  p->scratch = fsdp_alloc(FSDP_SPREAD_SCRATCH * batch * sizeof *p->scratch);
  for (int64_t step = 0; step < steps; step++) {
    draw_step(p, step);
    add_step(p, sums);
  }
  free(p->starts), free(p->work), free(p->pairs), free(p->sample_at), free(p->scratch);
}

static fsdp_status place(const fsdp_options *options, fsdp_plan *plan, fsdp_dataset *dataset,
                         fsdp_error *error) {
  fsdp_plan_config *c = &plan->config;
  int part;
  placing p = {.dataset = dataset, .plan = plan, .ranks = fsdp_plan_batch_part(plan, 0, &part)};
  placed sums[WINDOWS] = {{0}};
  const int64_t global_batch = c->batch * c->micro_batches * p.ranks;
  const int64_t wanted = fsdp_max_i64(1, SAMPLES_MAX / global_batch);
  if (global_batch > dataset->sample_count) return FSDP_OK; // training refuses data that is less than a step
  const fsdp_status status = fsdp_data_sampler(options, dataset, global_batch, &p.sampler, error);
  if (status != FSDP_OK) return status;
  place_samples(&p, fsdp_min_i64(wanted, fsdp_sampler_steps_per_epoch(&p.sampler)), sums);
  for (int windowed = 0; windowed < WINDOWS; windowed++) {
    c->document_work[windowed].most = sums[windowed].most / sums[windowed].mean;
    c->document_work[windowed].context = sums[windowed].of_group / sums[windowed].mean;
  }
  return FSDP_OK;
}

fsdp_status fsdp_document_work_find(const fsdp_options *options, const fsdp_setup *setup,
                                    fsdp_plan_config *config, fsdp_error *error) {
  fsdp_dataset *dataset;
  if (!config->documents || !options->data) return FSDP_OK;
  fsdp_status status = fsdp_data_open(options, setup, config->model.vocab_size, 1, &dataset, error);
  if (status != FSDP_OK) return status;
  measure(dataset, config);
  if (setup->plan) status = place(options, setup->plan, dataset, error);
  fsdp_dataset_close(dataset);
  return status;
}

fsdp_status fsdp_document_work_plan(const fsdp_options *options, fsdp_setup *setup, fsdp_error *error) {
  const fsdp_setup_ranks ranks = fsdp_setup_ranks_planned(options);
  fsdp_error unread;
  fsdp_status status = fsdp_setup_create(options, FSDP_PROGRAM_PLAN, &ranks, setup, error);
  const bool priced = setup->profile && setup->plan;
  const fsdp_status found =
      priced ? fsdp_document_work_find(options, setup, &setup->plan->config, &unread) : FSDP_OK;
  if (found == FSDP_OK || (status != FSDP_OK && status != FSDP_ERR_CAPACITY)) return status;
  *error = unread;
  return found;
}
