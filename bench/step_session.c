#include "bench/step_session.h"

#include "runtime/base/random.h"
#include "runtime/exec/state.h"

static fsdp_status draw(void *context, const fsdp_state_range *range, void *values, fsdp_error *error) {
  (void)error;
  const fsdp_param *param = &((step_session *)context)->setup.plan->graph->params[range->param];
  fsdp_random_normal(0, fsdp_random_stream(range->name), range->first_elem, range->numel, param->init_mean,
                     param->init_deviation, values);
  return FSDP_OK;
}

static fsdp_status open_data(step_session *s, const fsdp_world *world, int64_t steps, fsdp_error *error) {
  const fsdp_plan_config *c = &s->setup.plan->config;
  int rank, ranks = fsdp_plan_batch_part(s->setup.plan, world->rank, &rank);
  int64_t global_batch = c->batch * c->micro_batches * ranks;
  fsdp_dataset_config data = {.seq = c->seq, .global_batch = global_batch, .vocab_size = c->model.vocab_size};
  fsdp_status status = fsdp_dataset_open(&data, &s->dataset, error);
  if (status != FSDP_OK) return status;
  fsdp_feed_config feed = {
      .dataset = s->dataset,
      .sampler = {.sample_count = s->dataset->sample_count, .global_batch = global_batch},
      .ranks = ranks,
      .rank = rank,
      .rows = s->setup.plan->rows,
      .mesh = c->mesh,
      .world_rank = world->rank,
      .micro_batches = c->micro_batches,
      .rate = {.lr = 1e-4, .total_steps = steps},
      .optimizer = c->optimizer,
      .hyper = c->hyper};
  fsdp_feed_create(&s->feed, &feed);
  return FSDP_OK;
}

fsdp_status step_session_open(const fsdp_options *options, fsdp_world *world, int threads, int64_t steps,
                              step_session *s, fsdp_error *error) {
  *s = (step_session){0};
  fsdp_setup_ranks ranks = {
      .ranks = world->size, .ranks_per_node = world->local_size, .fills_nodes = world->even_nodes};
  fsdp_status status = fsdp_setup_create(options, FSDP_PROGRAM_TRAIN, &ranks, &s->setup, error);
  if (status != FSDP_OK) return status;
  status = open_data(s, world, steps, error);
  if (status != FSDP_OK) return status;
  fsdp_session_config config = {
      .plan = s->setup.plan,
      .world = world,
      .threads = threads,
      .callbacks = {.context = &s->feed,
                    .feed_step = fsdp_feed_step,
                    .feed_batch = fsdp_feed_batch,
                    .publish = fsdp_feed_publish},
      .profile = true,
  };
  status = fsdp_session_create(&config, &s->session, error);
  if (status == FSDP_OK) status = fsdp_state_fill(s->session.executor, draw, s, error);
  if (status == FSDP_OK) fsdp_executor_run_exchange(s->session.executor);
  return status;
}

void step_session_close(step_session *s) {
  fsdp_session_destroy(&s->session);
  fsdp_dataset_close(s->dataset);
  fsdp_setup_destroy(&s->setup);
}

int64_t step_session_tokens(const step_session *s) {
  const fsdp_plan_config *c = &s->setup.plan->config;
  return c->batch * c->seq * c->micro_batches * s->feed.config.ranks;
}
