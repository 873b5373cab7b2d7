#include "launcher/train/train.h"

#include "launcher/cli/capacity.h"
#include "launcher/report/memory_file.h"
#include "launcher/train/draw.h"
#include "launcher/train/trainer.h"
#include "runtime/base/size.h"
#include "runtime/comm/comm_nccl.h"
#include "runtime/exec/access_trace.h"
#include "runtime/exec/device_config.h"
#include "runtime/exec/state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// Steps are counted in fp32 on the device, which is exact up to here.
#define STEPS_MAX (INT64_C(1) << 24)

// What a trace of a step may take; more only stands for very many micro-batches, which repeat each other.
#define TRACE_BYTES_MAX (INT64_C(8) << 30)

// ---- Before the first step

// A trace grows with the micro-batches of a step: where it would be too large there is none.
static fsdp_status choose_trace(fsdp_trainer *t, fsdp_error *error) {
  int64_t bytes = fsdp_access_trace_bytes(t->setup.plan->program);
  t->measures = t->options->measure && bytes <= TRACE_BYTES_MAX;
  if (t->measures || !t->options->measure || !fsdp_options_given(t->options, "measure")) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_CAPACITY,
                   "--measure on (%s): the trace of a step of --grad-accum %" PRId64
                   " micro-batches takes %" PRId64 " bytes: leave it out, or use --measure off",
                   fsdp_options_place(t->options, "measure"), t->options->grad_accum, bytes);
}

static fsdp_status plan(fsdp_trainer *t, fsdp_error *error) {
  if (fsdp_train_agree_on_model(t->world, t->options, error) != FSDP_OK) return error->status;
  fsdp_setup_ranks ranks = {.ranks = t->world->size,
                            .ranks_per_node = t->world->local_size,
                            .even_nodes = t->world->even_nodes,
                            .machine_bytes = fsdp_capacity_machine_bytes(),
                            .gpu = t->gpu->present};
  error->status = FSDP_OK;
  if (ranks.gpu) fsdp_gpu_free_bytes(t->gpu, fsdp_cuda_backend()->probe, &ranks.gpu_bytes, error);
  if (error->status == FSDP_OK) {
    fsdp_setup_create(t->options, FSDP_PROGRAM_TRAIN, &ranks, &t->setup, error);
  }
  if (error->status == FSDP_OK) choose_trace(t, error);
  fsdp_status status = fsdp_world_share_error(t->world, error);
  if (status != FSDP_OK) return status;
  return fsdp_world_agree(t->world, "the step program", fsdp_program_hash(t->setup.plan->program), error);
}

static fsdp_status count_steps(fsdp_trainer *t, fsdp_error *error) {
  const fsdp_options *o = t->options;
  t->steps_per_epoch = fsdp_sampler_steps_per_epoch(&t->feed.config.sampler);
  int64_t steps;
  if (!fsdp_mul_checked(t->steps_per_epoch, o->num_epochs, &steps)) steps = INT64_MAX;
  if (steps < INT64_MAX) steps -= t->feed.sample_shift;
  if (o->max_steps && o->max_steps < steps) steps = o->max_steps;
  if (steps > STEPS_MAX) {
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "--num-epochs %" PRId64 " (%s) is more than %" PRId64
                     " steps: end sooner with --max-steps",
                     o->num_epochs, fsdp_options_place(o, "num-epochs"), STEPS_MAX);
  }
  t->total_steps = t->feed.config.rate.total_steps = steps;
  return FSDP_OK;
}

// What to evaluate on: data of its own, all of it, or a part of the training data.
static fsdp_status open_evaluation(fsdp_trainer *t, const fsdp_dataset_config *training,
                                   fsdp_feed_config *feed, fsdp_error *error) {
  const fsdp_options *o = t->options;
  if (!fsdp_options_evaluate(o)) return FSDP_OK;
  fsdp_status status;
  feed->eval_sampler = feed->sampler;
  feed->eval_sampler.global_batch = feed->batch * feed->ranks;
  if (o->eval_data) {
    fsdp_dataset_config data = *training;
    data.paths = o->eval_data;
    data.global_batch = 1;
    status = fsdp_dataset_open(&data, &t->eval_dataset, error);
    if (status != FSDP_OK) return status;
    feed->eval_dataset = t->eval_dataset;
    feed->eval_sampler.sample_count = feed->eval_sampler.held_out =
        fsdp_dataset_sample_count(t->eval_dataset);
    return FSDP_OK;
  }
  fsdp_error why;
  status = fsdp_sampler_hold_out(&feed->sampler, o->eval_split, &why);
  if (status != FSDP_OK) {
    return fsdp_fail(error, status, "--eval-split %g (%s): %.600s", o->eval_split,
                     fsdp_options_place(o, "eval-split"), why.message);
  }
  feed->eval_dataset = t->dataset;
  feed->eval_sampler.held_out = feed->sampler.held_out;
  return FSDP_OK;
}

static fsdp_status open_data(fsdp_trainer *t, fsdp_error *error) {
  const fsdp_options *o = t->options;
  const fsdp_plan_config *config = &t->setup.plan->config;
  int64_t ranks = t->world->size;
  int64_t global_batch = config->batch * config->accumulation * ranks;
  fsdp_dataset_config data = {.paths = o->data,
                              .tokenizer = t->tokenizer.path,
                              .only_bytes = t->tokenizer.asked_bytes,
                              .no_bytes = *t->tokenizer.no_bytes ? t->tokenizer.no_bytes : NULL,
                              .seq = config->seq,
                              .global_batch = global_batch,
                              .vocab_size = config->model.vocab_size,
                              .verify = o->verify_data && t->world->local_rank == 0};
  fsdp_status status = fsdp_dataset_open(&data, &t->dataset, error);
  if (status != FSDP_OK) return status;
  t->step_tokens = global_batch * config->seq;
  fsdp_feed_config feed = {.dataset = t->dataset,
                           .sampler = {.seed = (uint64_t)o->seed,
                                       .sample_count = fsdp_dataset_sample_count(t->dataset),
                                       .global_batch = global_batch},
                           .ranks = ranks,
                           .rank = t->world->rank,
                           .batch = config->batch,
                           .seq = config->seq,
                           .accumulation = config->accumulation,
                           .beta1 = o->beta1,
                           .beta2 = o->beta2,
                           .norm_limit = config->grad_clip > 0 ? fsdp_plan_norm_limit(config) : 0};
  feed.rate = (fsdp_learning_rate){.schedule = (fsdp_lr_schedule)o->lr_schedule,
                                   .lr = o->lr,
                                   .min_lr = o->min_lr,
                                   .warmup_steps = o->warmup_steps};
  status = open_evaluation(t, &data, &feed, error);
  if (status != FSDP_OK) return status;
  fsdp_feed_create(&t->feed, &feed);
  return count_steps(t, error);
}

// The files of the model's folder.
static fsdp_status open_model(fsdp_trainer *t, fsdp_error *error) {
  fsdp_status status = fsdp_train_find_tokenizer(t->options, &t->setup, &t->tokenizer, error);
  if (status == FSDP_OK && t->setup.load_weights) {
    status = fsdp_weights_open(t->setup.folder, t->setup.plan->graph, &t->weights, error);
  }
  return status;
}

// Data, and every file that the run writes, so that what is missing is known before memory is taken.
static fsdp_status open_files(fsdp_trainer *t, fsdp_error *error) {
  fsdp_status status = open_data(t, error);
  bool fresh = !fsdp_train_checkpoints_found(&t->checkpoints);
  if (status == FSDP_OK && fsdp_trainer_is_first(t))
    status = fsdp_train_open_log(t->options, fresh, &t->log.log, error);
  if (status == FSDP_OK && fsdp_trainer_is_first(t) && t->options->tensorboard) {
    status = fsdp_event_file_open(t->options->tensorboard, &t->log.events, error);
  }
  if (status == FSDP_OK && fsdp_trainer_is_first(t) && t->options->memory_profile) {
    status = fsdp_memory_profile_write(t->setup.plan, t->setup.model_name, t->options->memory_profile, error);
  }
  return status;
}

static fsdp_status create_device(fsdp_trainer *t, fsdp_error *error) {
  fsdp_device_config config = {.shared = t->world->size > 1, .ordinal = t->gpu->ordinal};
  if (t->options->nccl_register && t->world->size > 1) {
    config.allocate = fsdp_nccl_alloc;
    config.release = fsdp_nccl_free;
  }
  fsdp_device_configure(t->setup.plan->program, fsdp_trainer_threads(t), &config);
  const fsdp_device_table *table = t->gpu->present ? fsdp_device_cuda() : fsdp_device_cpu();
  return table->create(&config, &t->device, error);
}

static fsdp_status create_comms(fsdp_trainer *t, fsdp_error *error) {
  fsdp_comm_group groups[FSDP_COMMS_MAX];
  int count = fsdp_executor_groups(t->setup.plan->program, t->world->rank, groups);
  if (t->gpu->present) {
    fsdp_nccl_config config = {.groups = groups,
                               .group_count = count,
                               .arenas = &t->device->arenas,
                               .timeout_s = (int)t->options->comm_timeout,
                               .registers = t->options->nccl_register};
    return fsdp_nccl_comms(t->world, &config, &t->comms, error);
  }
  fsdp_comms_config config = {.groups = groups, .group_count = count, .arenas = &t->device->arenas};
  return fsdp_world_comms(t->world, &config, &t->comms, error);
}

static fsdp_status draw_or_read(void *context, const fsdp_state_range *range, void *values,
                                fsdp_error *error) {
  fsdp_trainer *t = context;
  if (t->weights)
    return fsdp_weights_read(t->weights, range->param, range->first_elem, range->elems, values, error);
  fsdp_draw_param(t->drawers, &t->setup.plan->graph->params[range->param], (uint64_t)t->options->seed,
                  range->first_elem, range->elems, values);
  return FSDP_OK;
}

static void create_executor(fsdp_trainer *t) {
  fsdp_executor_config config = {.plan = t->setup.plan,
                                 .rank = t->world->rank,
                                 .device = t->device,
                                 .kernels = t->gpu->present ? fsdp_cuda_backend() : NULL,
                                 .callbacks = {.context = &t->feed,
                                               .feed_step = fsdp_feed_step,
                                               .feed_batch = fsdp_feed_batch,
                                               .publish = fsdp_feed_publish,
                                               .observe = fsdp_feed_observe},
                                 .seed = (uint64_t)t->options->seed,
                                 .measure = t->measures,
                                 .profile = true};
  memcpy(config.comms, t->comms.comm, sizeof config.comms);
  t->executor = fsdp_executor_create(&config);
}

// New weights or the folder's, each of which is drawn or read by one of the ranks that share it.
static fsdp_status start_state(fsdp_trainer *t, fsdp_error *error) {
  if (!t->weights && t->gpu->present) {
    fsdp_state_draw(t->executor, (uint64_t)t->options->seed);
  } else {
    t->drawers = fsdp_pool_create(t->binding->core_count);
    fsdp_state_fill_slice(t->executor, draw_or_read, t, error);
    fsdp_pool_destroy(t->drawers);
  }
  if (fsdp_world_share_error(t->world, error) != FSDP_OK) return error->status;
  fsdp_state_exchange(t->executor, FSDP_SLOT_MASTER);
  if (t->weights) t->weights_bytes = fsdp_world_sum(t->world, fsdp_weights_bytes_read(t->weights));
  return FSDP_OK;
}

// From the checkpoint, or a new start; then feed, log and number of steps are where the run goes on.
static fsdp_status fill_state(fsdp_trainer *t, fsdp_error *error) {
  if (!fsdp_train_checkpoints_found(&t->checkpoints) && start_state(t, error) != FSDP_OK) {
    return error->status;
  }
  if (fsdp_train_checkpoints_restore(&t->checkpoints, t->executor, &t->feed, error) != FSDP_OK) {
    return error->status;
  }
  fsdp_status status = count_steps(t, error);
  if (status == FSDP_OK && t->log.log && fsdp_train_checkpoints_found(&t->checkpoints)) {
    fsdp_metrics_log_rewind(t->log.log, "global_step", t->feed.first_step, error);
  }
  return fsdp_world_share_error(t->world, error);
}

static fsdp_status prepare(fsdp_trainer *t, fsdp_error *error) {
  fsdp_board_enter(FSDP_ACTIVITY_LOADING);
  t->checkpoints.options = t->options;
  t->checkpoints.setup = &t->setup;
  t->checkpoints.world = t->world;
  if (fsdp_train_checkpoints_open(&t->checkpoints, error) != FSDP_OK) return error->status;
  open_model(t, error);
  if (fsdp_world_share_error(t->world, error) != FSDP_OK) return error->status;
  if (fsdp_train_agree_on_files(t, error) != FSDP_OK) return error->status;
  open_files(t, error);
  if (fsdp_world_share_error(t->world, error) != FSDP_OK) return error->status;
  if (fsdp_train_agree_on_schedule(t, error) != FSDP_OK) return error->status;
  create_device(t, error);
  if (fsdp_world_share_error(t->world, error) != FSDP_OK) return error->status;
  t->has_comms = create_comms(t, error) == FSDP_OK;
  if (fsdp_world_share_error(t->world, error) != FSDP_OK) return error->status;
  create_executor(t);
  return fill_state(t, error);
}

// ---- The run

static void destroy(fsdp_trainer *t) {
  fsdp_train_checkpoints_close(&t->checkpoints);
  fsdp_executor_destroy(t->executor);
  if (t->has_comms) fsdp_comms_destroy(&t->comms);
  if (t->device) t->device->table->destroy(t->device);
  fsdp_train_log_close(&t->log);
  fsdp_weights_close(t->weights);
  fsdp_dataset_close(t->dataset);
  fsdp_dataset_close(t->eval_dataset);
  fsdp_train_tokenizer_destroy(&t->tokenizer);
  fsdp_setup_destroy(&t->setup);
}

fsdp_status fsdp_train_run(const fsdp_train_config *config, int *stop_signal, fsdp_error *error) {
  fsdp_trainer t = {.world = config->world,
                    .options = config->options,
                    .binding = config->binding,
                    .gpu = config->gpu,
                    .why_cpu = config->why_cpu};
  fsdp_status status = plan(&t, error);
  if (status == FSDP_OK && fsdp_trainer_is_first(&t)) fsdp_train_print_asked_for(&t);
  if (status == FSDP_OK && !t.options->dry_run) {
    status = prepare(&t, error);
    if (status == FSDP_OK) {
      fsdp_binding_print(t.world, t.binding, stdout);
      if (fsdp_trainer_is_first(&t)) fsdp_train_print_start(&t);
      status = fsdp_train_run_steps(&t, stop_signal, error);
    }
  }
  destroy(&t);
  return status;
}
