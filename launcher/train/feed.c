#include "launcher/train/feed.h"

#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/random.h"
#include "runtime/base/size.h"
#include "runtime/data/spread.h"

#include <stdlib.h>
#include <string.h>

void fsdp_feed_create(fsdp_feed *feed, const fsdp_feed_config *config) {
  *feed = (fsdp_feed){.config = *config, .eval_step = -1, .spread_step = -1};
  if (config->loss_of_documents)
    fsdp_learned_create(&feed->learned, config->rows.parts * config->rows.local_seq);
  for (int i = 0; i < FSDP_FEED_STEPS_KEPT; i++) atomic_init(&feed->busy_ns[i], 0);
  if (!config->spreads) return;
  size_t samples = (size_t)config->sampler.global_batch;
  feed->spread = fsdp_alloc(samples * sizeof *feed->spread);
  feed->spread_scratch = fsdp_alloc(FSDP_SPREAD_SCRATCH * samples * sizeof *feed->spread_scratch);
  feed->work = fsdp_alloc(samples * sizeof *feed->work);
}

void fsdp_feed_destroy(fsdp_feed *feed) {
  free(feed->spread);
  free(feed->spread_scratch);
  free(feed->work);
  fsdp_learned_destroy(&feed->learned);
}

void fsdp_feed_seek(fsdp_feed *feed, int64_t step, int64_t updates, int64_t sample_shift) {
  feed->steps_fed = feed->first_step = step;
  feed->micro_batches_fed = step * feed->config.micro_batches;
  feed->updates = updates;
  feed->sample_shift = sample_shift;
}

static void book(fsdp_feed *feed, int64_t step, int64_t began_ns) {
  atomic_fetch_add(&feed->busy_ns[step % FSDP_FEED_STEPS_KEPT], fsdp_now_ns() - began_ns);
}

// The sample at a position of step `step`.
static int64_t sample_at(const fsdp_feed *feed, int64_t step, int64_t position) {
  const fsdp_sampler *sampler = &feed->config.sampler;
  int64_t steps = fsdp_sampler_steps_per_epoch(sampler), at = step + feed->sample_shift;
  return fsdp_sampler_sample(sampler, at / steps, at % steps, position);
}

// The position of the sample in a place of step `step`: the place itself, unless work is spread.
static int64_t position_at(fsdp_feed *feed, int64_t step, int64_t place) {
  const fsdp_feed_config *config = &feed->config;
  if (!feed->spread) return place;
  if (feed->spread_step != step) {
    for (int64_t p = 0; p < config->sampler.global_batch; p++)
      feed->work[p] = fsdp_dataset_sample_pairs(config->dataset, sample_at(feed, step, p));
    fsdp_spread_work(feed->work, config->micro_batches, config->ranks, config->rows.batch, feed->spread,
                     feed->spread_scratch);
    feed->spread_step = step;
  }
  return feed->spread[place];
}

// The position in the step of sequence `sequence` of this rank's micro-batch `micro_batch`.
static int64_t position_of(fsdp_feed *feed, int64_t step, int64_t micro_batch, int64_t sequence) {
  const fsdp_feed_config *config = &feed->config;
  fsdp_sampler_part part = {
      .ranks = config->ranks, .rank = config->rank, .micro_batch = micro_batch, .batch = config->rows.batch};
  return position_at(feed, step, fsdp_sampler_position(&part, sequence));
}

// A sequence of the batch that is fed, and where its numbers come from.
typedef struct fed_sequence {
  int64_t index;               // in the rank's batch
  const fsdp_dataset *dataset; // with its `sample`; NULL: it is the text that is being sampled
  int64_t sample;
  int64_t step, position; // of a step's samples, where it stands there; step -1: it is none
} fed_sequence;

// The position in its sequence of index `index` of a rank's rows.
static int64_t position_of_index(const fsdp_feed *feed, int64_t index) {
  return fsdp_rows_position(&feed->config.rows, &feed->config.mesh, feed->config.world_rank, index);
}

// The part of `sample` at index `index` of a rank's rows and on: as many positions as are neighbours both in
// the sequence and in the rows.
static fsdp_dataset_part part_at(const fsdp_feed *feed, int64_t sample, int64_t index) {
  const fsdp_rows *rows = &feed->config.rows;
  int64_t end = fsdp_min_i64((index / rows->piece + 1) * rows->piece, rows->local_seq);
  if (index < rows->chunk) end = fsdp_min_i64(end, rows->chunk);
  return (fsdp_dataset_part){.sample = sample, .first = position_of_index(feed, index), .count = end - index};
}

// ---- Inputs (models/graph/inputs.def): each fills in the numbers of one sequence

// Behind a text that is being sampled is padding, which no token of it sees. Its targets are not learned.
static void fill_tokens(fsdp_feed *feed, const fed_sequence *s, int32_t *tokens, int32_t *targets) {
  const fsdp_rows *rows = &feed->config.rows;
  fsdp_dataset_part part;
  for (int64_t index = 0; index < rows->local_seq && s->dataset; index += part.count) {
    const int64_t row = fsdp_rows_row(rows, s->index, index);
    part = part_at(feed, s->sample, index);
    fsdp_dataset_fill_part(s->dataset, &part, tokens + row, targets + row);
  }
  for (int64_t index = 0; index < rows->local_seq && !s->dataset; index++) {
    const int64_t row = fsdp_rows_row(rows, s->index, index), position = position_of_index(feed, index);
    tokens[row] = position < feed->sampled_count ? feed->sampled[position] : 0;
    targets[row] = FSDP_TARGET_IGNORED;
  }
}

// A text that is being sampled is one document.
static void fill_starts(fsdp_feed *feed, const fed_sequence *s, int32_t *starts) {
  const int64_t positions = feed->config.rows.parts * feed->config.rows.local_seq;
  starts += s->index * positions;
  if (s->dataset)
    fsdp_dataset_fill_starts(s->dataset, s->sample, positions, starts);
  else
    memset(starts, 0, (size_t)positions * sizeof *starts);
}

static void fill_routes(fsdp_feed *feed, const fed_sequence *s, int32_t *routes) {
  const fsdp_rows *rows = &feed->config.rows;
  const int64_t width = fsdp_routing_width(feed->config.replay);
  for (int64_t index = 0; index < rows->local_seq; index++) {
    int32_t *row = routes + fsdp_rows_row(rows, s->index, index) * width;
    const int64_t position = position_of_index(feed, index);
    if (s->step < 0 || position >= rows->seq) // padding, which chooses for itself
      memset(row, -1, (size_t)width * sizeof *row);
    else
      fsdp_routing_read(feed->config.replay, s->step, s->position, position, row);
  }
}

static void fill_real(fsdp_feed *feed, const fed_sequence *s, int32_t *real) {
  const fsdp_rows *rows = &feed->config.rows;
  const int64_t count = s->dataset ? fsdp_dataset_real_count(s->dataset, s->sample) : feed->sampled_count;
  for (int64_t index = 0; index < rows->local_seq; index++)
    real[fsdp_rows_row(rows, s->index, index)] = position_of_index(feed, index) < count;
}

static void fill_learned(fsdp_feed *feed, const fed_sequence *s, int32_t *learned) {
  const fsdp_rows *rows = &feed->config.rows;
  if (s->dataset) fsdp_learned_find(&feed->learned, s->dataset, s->sample);
  for (int64_t index = 0; index < rows->local_seq; index++)
    learned[fsdp_rows_row(rows, s->index, index)] =
        s->dataset ? feed->learned.counts[position_of_index(feed, index)] : 0;
}

// Dropout's draws, by the number of the sequence's step and its position in that; else none is dropped.
static void fill_draws(fsdp_feed *feed, const fed_sequence *s, int32_t *draws) {
  const fsdp_feed_config *config = &feed->config;
  for (int64_t index = 0; index < config->rows.local_seq; index++) {
    int32_t *row = draws + FSDP_DROPOUT_WORDS * fsdp_rows_row(&config->rows, s->index, index);
    if (s->step >= 0)
      fsdp_dropout_row(config->drop_seed, s->step, s->position, position_of_index(feed, index), row);
    else
      memset(row, 0, FSDP_DROPOUT_WORDS * sizeof *row);
  }
}

// Tokens and targets are filled together.
static void (*const fillers[FSDP_INPUT_COUNT])(fsdp_feed *, const fed_sequence *,
                                               int32_t *) = {[FSDP_INPUT_STARTS] = fill_starts,
                                                             [FSDP_INPUT_ROUTES] = fill_routes,
                                                             [FSDP_INPUT_LEARNED] = fill_learned,
                                                             [FSDP_INPUT_REAL] = fill_real,
                                                             [FSDP_INPUT_DRAWS] = fill_draws};

static void fill_sequence(fsdp_feed *feed, const fed_sequence *s, int32_t *const inputs[FSDP_INPUT_COUNT]) {
  fill_tokens(feed, s, inputs[FSDP_INPUT_TOKENS], inputs[FSDP_INPUT_TARGETS]);
  for (int i = FSDP_INPUT_TARGETS + 1; i < FSDP_INPUT_COUNT; i++) {
    FSDP_CHECK(!inputs[i] || fillers[i], "nothing fills input %d of the graph", i);
    if (inputs[i]) fillers[i](feed, s, inputs[i]);
  }
}

// ---- Counts

// How many documents have their first target that counts on this rank.
static int64_t count_documents(fsdp_feed *feed, int64_t sample) {
  const fsdp_rows *rows = &feed->config.rows;
  int64_t count = 0;
  fsdp_learned_find(&feed->learned, feed->config.dataset, sample);
  for (int64_t index = 0; index < rows->local_seq; index++)
    count += feed->learned.is_first[position_of_index(feed, index)];
  return count;
}

// How many targets of a sample this rank has, or documents.
static int64_t count_targets(fsdp_feed *feed, int64_t sample) {
  fsdp_dataset_part part;
  int64_t count = 0;
  if (feed->config.loss_of_documents) return count_documents(feed, sample);
  for (int64_t index = 0; index < feed->config.rows.local_seq; index += part.count) {
    part = part_at(feed, sample, index);
    count += fsdp_dataset_part_target_count(feed->config.dataset, &part);
  }
  return count;
}

// The sample that is sequence `sequence` of this rank's batch of step `step` of an evaluation.
static int64_t eval_sample_of(const fsdp_feed *feed, int64_t step, int64_t sequence) {
  const fsdp_feed_config *config = &feed->config;
  fsdp_sampler_part part = {.ranks = config->ranks, .rank = config->rank, .batch = config->rows.batch};
  return fsdp_sampler_validation_sample(&config->eval_sampler, step, fsdp_sampler_position(&part, sequence));
}

int64_t fsdp_feed_eval_targets(fsdp_feed *feed, int64_t step) {
  int64_t count = 0;
  for (int64_t i = 0; i < feed->config.rows.batch; i++) {
    const int64_t sample = eval_sample_of(feed, step, i);
    if (feed->config.loss_of_documents) fsdp_learned_find(&feed->learned, feed->config.eval_dataset, sample);
    count += feed->config.loss_of_documents ? feed->learned.documents
                                            : fsdp_dataset_target_count(feed->config.eval_dataset, sample);
  }
  return count;
}

double fsdp_feed_evaluate(fsdp_feed *feed, fsdp_executor *executor, fsdp_world *world) {
  const int64_t alike = world->size / feed->config.ranks; // ranks that have the same sequences
  int64_t steps = fsdp_sampler_validation_steps(&feed->config.eval_sampler), count = 0;
  double sum = 0;
  // The callbacks see eval_step: they run while run_evaluation waits, and those of steps are complete.
  for (feed->eval_step = 0; feed->eval_step < steps; feed->eval_step++) {
    float loss;
    feed->eval_target_count = fsdp_world_sum(world, fsdp_feed_eval_targets(feed, feed->eval_step)) / alike;
    fsdp_executor_run_evaluation(executor, &loss);
    sum += (double)loss * (double)feed->eval_target_count;
    count += feed->eval_target_count;
  }
  feed->eval_step = -1;
  feed->eval_counted = count;
  return sum / (double)count;
}

void fsdp_feed_logits(fsdp_feed *feed, fsdp_executor *executor, const int32_t *tokens, int64_t count,
                      float *logits) {
  const fsdp_rows *rows = &feed->config.rows;
  FSDP_CHECK(count >= 1 && count <= rows->seq, "a text of %lld tokens", (long long)count);
  int64_t row = FSDP_NO_ROW;
  for (int64_t index = 0; index < rows->local_seq && feed->config.rank == 0; index++)
    if (position_of_index(feed, index) == count - 1) row = fsdp_rows_row(rows, 0, index);
  feed->sampled = tokens;
  feed->sampled_count = count;
  fsdp_executor_run_logits(executor, row, logits);
  feed->sampled = NULL;
}

void fsdp_feed_step(void *context, float scalars[FSDP_SCALAR_COUNT], float *target_count) {
  fsdp_feed *feed = context;
  if (feed->sampled) {
    *target_count = 0;
    return;
  }
  if (feed->eval_step >= 0) {
    *target_count = (float)feed->eval_target_count;
    return;
  }
  int64_t began_ns = fsdp_now_ns(), step = feed->steps_fed++;
  scalars[FSDP_SCALAR_LR] = (float)fsdp_learning_rate_at(&feed->config.rate, step);
  fsdp_optimizer_scalars(feed->config.optimizer, &feed->config.hyper, (double)(feed->updates + 1), scalars);
  int64_t count = 0;
  for (int64_t m = 0; m < feed->config.micro_batches; m++) {
    for (int64_t i = 0; i < feed->config.rows.batch; i++)
      count += count_targets(feed, sample_at(feed, step, position_of(feed, step, m, i)));
  }
  *target_count = (float)count;
  book(feed, step, began_ns);
}

static fed_sequence eval_sequence(const fsdp_feed *feed, int64_t index) {
  return (fed_sequence){.index = index,
                        .dataset = feed->config.eval_dataset,
                        .sample = eval_sample_of(feed, feed->eval_step, index),
                        .step = -1};
}

static fed_sequence step_sequence(fsdp_feed *feed, int64_t step, int64_t micro_batch, int64_t index) {
  const int64_t position = position_of(feed, step, micro_batch, index);
  return (fed_sequence){.index = index,
                        .dataset = feed->config.dataset,
                        .sample = sample_at(feed, step, position),
                        .step = step,
                        .position = position};
}

void fsdp_feed_batch(void *context, int32_t *const inputs[FSDP_INPUT_COUNT]) {
  fsdp_feed *feed = context;
  const bool is_step = !feed->sampled && feed->eval_step < 0;
  const int64_t began_ns = fsdp_now_ns(), fed = feed->micro_batches_fed;
  const int64_t step = fed / feed->config.micro_batches, micro_batch = fed % feed->config.micro_batches;
  for (int64_t i = 0; i < feed->config.rows.batch; i++) {
    // Each is the text that is being sampled, if any, which costs nothing more: one row is looked at.
    const fed_sequence sequence = feed->sampled ? (fed_sequence){.index = i, .step = -1}
                                  : is_step     ? step_sequence(feed, step, micro_batch, i)
                                                : eval_sequence(feed, i);
    fill_sequence(feed, &sequence, inputs);
  }
  if (!is_step) return;
  feed->micro_batches_fed++;
  book(feed, step, began_ns);
}

void fsdp_feed_observe(void *context, const fsdp_instr *instr, const fsdp_view *operands) {
  fsdp_feed *feed = context;
  const fsdp_feed_config *config = &feed->config;
  if (!config->record || feed->sampled || feed->eval_step >= 0) return;
  const int64_t layer = fsdp_routing_layer_of(config->record, instr);
  if (layer < 0) return;
  const int32_t *experts = operands[0].data;
  const int64_t slots = operands[0].numel / (config->rows.batch * config->rows.local_seq);
  if (layer == 0) feed->micro_batches_seen++;
  const int64_t seen = feed->first_step * config->micro_batches + feed->micro_batches_seen - 1;
  fsdp_sampler_part part = {.ranks = config->ranks,
                            .rank = config->rank,
                            .micro_batch = seen % config->micro_batches,
                            .batch = config->rows.batch};
  for (int64_t i = 0; i < config->rows.batch; i++)
    for (int64_t index = 0; index < config->rows.local_seq; index++) {
      const int64_t position = position_of_index(feed, index);
      if (position < config->rows.seq) // not padding
        fsdp_routing_write(config->record, seen / config->micro_batches, fsdp_sampler_position(&part, i),
                           position, layer, experts + fsdp_rows_row(&config->rows, i, index) * slots);
    }
}

bool fsdp_feed_skips(const fsdp_feed *feed, float grad_norm) {
  return feed->config.norm_limit > 0 && FSDP_NORM_SKIPS(grad_norm, feed->config.norm_limit);
}

void fsdp_feed_publish(void *context, float loss, float grad_norm) {
  fsdp_feed *feed = context;
  (void)loss;
  if (feed->eval_step < 0 && !feed->sampled && !fsdp_feed_skips(feed, grad_norm)) feed->updates++;
}

double fsdp_feed_take_ms(fsdp_feed *feed, int64_t step) {
  return (double)atomic_exchange(&feed->busy_ns[step % FSDP_FEED_STEPS_KEPT], 0) / 1e6;
}

void fsdp_feed_count(const fsdp_feed *feed, int64_t step, int64_t *real, int64_t *learned) {
  *real = *learned = 0;
  for (int64_t position = 0; position < feed->config.sampler.global_batch; position++) {
    const int64_t sample = sample_at(feed, step, position);
    *real += fsdp_dataset_real_count(feed->config.dataset, sample);
    *learned += fsdp_dataset_target_count(feed->config.dataset, sample);
  }
}
