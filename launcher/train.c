#include "launcher/train.h"

#include "launcher/capacity.h"
#include "launcher/draw.h"
#include "launcher/feed.h"
#include "launcher/memory_profile.h"
#include "launcher/option_value.h"
#include "launcher/progress.h"
#include "launcher/report.h"
#include "launcher/setup.h"
#include "launcher/stop.h"
#include "launcher/train_checkpoints.h"
#include "launcher/train_files.h"
#include "runtime/base/size.h"
#include "runtime/exec/comm_nccl.h"
#include "runtime/exec/state.h"
#include "runtime/io/event_file.h"
#include "runtime/io/metrics_log.h"
#include "runtime/io/weights.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Steps are counted in fp32 on the device, which is exact up to here.
#define STEPS_MAX (INT64_C(1) << 24)
// How often ranks ask each other whether to stop.
#define AGREEMENT_MS 200

typedef struct trainer {
  fsdp_world *world;
  const fsdp_options *options;
  const fsdp_placement *placement;
  const fsdp_gpu *gpu;
  fsdp_setup setup;
  fsdp_dataset *dataset, *eval_dataset; // the latter NULL without --eval-data
  fsdp_weights *weights;
  fsdp_metrics_log *log;   // of rank 0, or NULL
  fsdp_event_file *events; // likewise
  fsdp_device *device;
  fsdp_comms comms;
  bool has_comms;
  fsdp_executor *executor;
  fsdp_pool *drawers;    // while the first weights are drawn
  int64_t used_bytes;    // of the device, when last asked
  int64_t weights_bytes; // read of the folder's weights, by all ranks
  fsdp_feed feed;
  fsdp_train_checkpoints checkpoints;
  int64_t total_steps, steps_per_epoch, step_tokens;
  int64_t next_agreement; // the step after which ranks next ask each other whether to stop
} trainer;

// What the steps since the last line on the terminal have added up to.
typedef struct tally {
  double line_loss, line_ms, run_ms;
  int64_t line_steps;
} tally;

static bool is_first(const trainer *t) {
  return t->world->rank == 0;
}

// ---- Agreement
// -----------------------------------------------------------------------------------------------------

// The first line in which two descriptions differ, into `mine` and `theirs`.
static void first_difference(const char *a, const char *b, char mine[128], char theirs[128]) {
  while (*a && *b) {
    size_t length_a = strcspn(a, "\n"), length_b = strcspn(b, "\n");
    if (length_a != length_b || memcmp(a, b, length_a) != 0) break;
    a += length_a + 1;
    b += length_b + 1;
  }
  snprintf(mine, 128, "%.*s", (int)strcspn(a, "\n"), a);
  snprintf(theirs, 128, "%.*s", (int)strcspn(b, "\n"), b);
}

fsdp_status fsdp_train_agree_on_options(fsdp_world *world, const fsdp_options *options, fsdp_error *error) {
  char *mine = fsdp_options_describe(options);
  int64_t bytes = (int64_t)strlen(mine) + 1;
  fsdp_world_broadcast(world, &bytes, (int64_t)sizeof bytes);
  char *first = fsdp_alloc((size_t)bytes);
  if (world->rank == 0) memcpy(first, mine, (size_t)bytes);
  fsdp_world_broadcast(world, first, bytes);
  error->status = FSDP_OK;
  if (strcmp(mine, first) != 0) {
    char here[128], there[128];
    first_difference(mine, first, here, there);
    fsdp_fail(error, FSDP_ERR_OPTION,
              "rank %d was started with --%s but rank 0 with --%s: start every rank with the same options",
              world->rank, here, there);
  }
  free(mine);
  free(first);
  return fsdp_world_share_error(world, error);
}

// ---- Before the first step
// -----------------------------------------------------------------------------------------

static fsdp_status plan(trainer *t, fsdp_error *error) {
  fsdp_setup_ranks ranks = {.ranks = t->world->size,
                            .ranks_per_node = t->world->local_size,
                            .even_nodes = t->world->even_nodes,
                            .machine_bytes = fsdp_capacity_machine_bytes(),
                            .gpu = t->gpu->present};
  error->status = FSDP_OK;
  if (ranks.gpu) fsdp_gpu_free_bytes(t->gpu, &ranks.gpu_bytes, error);
  if (error->status == FSDP_OK) {
    fsdp_setup_create(t->options, FSDP_PROGRAM_TRAIN, &ranks, &t->setup, error);
  }
  fsdp_status status = fsdp_world_share_error(t->world, error);
  if (status != FSDP_OK) return status;
  return fsdp_world_agree(t->world, "the step program", fsdp_program_hash(t->setup.plan->program), error);
}

static fsdp_status count_steps(trainer *t, fsdp_error *error) {
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
static fsdp_status open_evaluation(trainer *t, const fsdp_dataset_config *training, fsdp_feed_config *feed,
                                   fsdp_error *error) {
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

static fsdp_status open_data(trainer *t, fsdp_error *error) {
  const fsdp_options *o = t->options;
  const fsdp_plan_config *config = &t->setup.plan->config;
  int64_t ranks = t->world->size;
  int64_t global_batch = config->batch * config->accumulation * ranks;
  char *tokenizer;
  fsdp_status status = fsdp_train_find_tokenizer(o, &t->setup, &tokenizer, error);
  fsdp_dataset_config data = {.paths = o->data,
                              .tokenizer = tokenizer,
                              .seq = config->seq,
                              .global_batch = global_batch,
                              .vocab_size = config->model.vocab_size};
  if (status == FSDP_OK) status = fsdp_dataset_open(&data, &t->dataset, error);
  if (status != FSDP_OK) {
    free(tokenizer);
    return status;
  }
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
                           .beta2 = o->beta2};
  feed.rate = (fsdp_learning_rate){.schedule = (fsdp_lr_schedule)o->lr_schedule,
                                   .lr = o->lr,
                                   .min_lr = o->min_lr,
                                   .warmup_steps = o->warmup_steps};
  status = open_evaluation(t, &data, &feed, error);
  free(tokenizer);
  if (status != FSDP_OK) return status;
  fsdp_feed_create(&t->feed, &feed);
  return count_steps(t, error);
}

// Every file that the run reads or writes, so that a missing one is known before memory is taken.
static fsdp_status open_files(trainer *t, fsdp_error *error) {
  fsdp_status status = open_data(t, error);
  if (status == FSDP_OK && t->setup.load_weights) {
    status = fsdp_weights_open(t->setup.folder, t->setup.plan->graph, &t->weights, error);
  }
  bool fresh = !fsdp_train_checkpoints_found(&t->checkpoints);
  if (status == FSDP_OK && is_first(t)) status = fsdp_train_open_log(t->options, fresh, &t->log, error);
  if (status == FSDP_OK && is_first(t) && t->options->tensorboard) {
    status = fsdp_event_file_open(t->options->tensorboard, &t->events, error);
  }
  if (status == FSDP_OK && is_first(t) && t->options->memory_profile) {
    status = fsdp_memory_profile_write(t->setup.plan, t->setup.model_name, t->options->memory_profile, error);
  }
  return status;
}

static fsdp_status create_device(trainer *t, fsdp_error *error) {
  int threads = t->options->threads ? (int)t->options->threads : t->placement->core_count;
  fsdp_device_config config = {.shared = t->world->size > 1,
                               .ordinal = t->gpu->ordinal,
                               .registered = t->options->nccl_register && t->world->size > 1};
  fsdp_device_configure(t->setup.plan->program, threads, &config);
  const fsdp_device_table *table = t->gpu->present ? fsdp_device_cuda() : fsdp_device_cpu();
  return table->create(&config, &t->device, error);
}

static fsdp_status create_comms(trainer *t, fsdp_error *error) {
  const fsdp_mesh *mesh = &t->setup.plan->config.mesh;
  if (t->gpu->present) {
    fsdp_nccl_config config = {.mesh = mesh,
                               .device = t->device,
                               .timeout_s = (int)t->options->comm_timeout,
                               .registers = t->options->nccl_register};
    return fsdp_nccl_comms(t->world, &config, &t->comms, error);
  }
  fsdp_comms_config config = {.mesh = mesh, .device = t->device};
  return fsdp_world_comms(t->world, &config, &t->comms, error);
}

static fsdp_status draw_or_read(void *context, const fsdp_state_range *range, void *values,
                                fsdp_error *error) {
  trainer *t = context;
  if (t->weights)
    return fsdp_weights_read(t->weights, range->param, range->first_elem, range->elems, values, error);
  fsdp_draw_param(t->drawers, &t->setup.plan->graph->params[range->param], (uint64_t)t->options->seed,
                  range->first_elem, range->elems, values);
  return FSDP_OK;
}

static void create_executor(trainer *t) {
  fsdp_executor_config config = {.plan = t->setup.plan,
                                 .rank = t->world->rank,
                                 .device = t->device,
                                 .callbacks = {.context = &t->feed,
                                               .feed_step = fsdp_feed_step,
                                               .feed_batch = fsdp_feed_batch,
                                               .observe = fsdp_feed_observe},
                                 .seed = (uint64_t)t->options->seed,
                                 .measure = t->options->measure,
                                 .profile = true};
  memcpy(config.comms, t->comms.group, sizeof config.comms);
  t->executor = fsdp_executor_create(&config);
}

// New weights or the folder's, each of which is drawn or read by one of the ranks that share it.
static fsdp_status start_state(trainer *t, fsdp_error *error) {
  t->drawers = fsdp_pool_create(t->placement->core_count);
  fsdp_state_fill_slice(t->executor, draw_or_read, t, error);
  fsdp_pool_destroy(t->drawers);
  if (fsdp_world_share_error(t->world, error) != FSDP_OK) return error->status;
  fsdp_state_exchange(t->executor, FSDP_STATE_MASTER);
  if (t->weights) t->weights_bytes = fsdp_world_sum(t->world, fsdp_weights_bytes_read(t->weights));
  return FSDP_OK;
}

// From the checkpoint, or a new start; then feed, log and number of steps are where the run goes on.
static fsdp_status fill_state(trainer *t, fsdp_error *error) {
  if (!fsdp_train_checkpoints_found(&t->checkpoints) && start_state(t, error) != FSDP_OK) {
    return error->status;
  }
  if (fsdp_train_checkpoints_restore(&t->checkpoints, t->executor, &t->feed, error) != FSDP_OK) {
    return error->status;
  }
  fsdp_status status = count_steps(t, error);
  if (status == FSDP_OK && t->log && fsdp_train_checkpoints_found(&t->checkpoints)) {
    fsdp_metrics_log_rewind(t->log, "global_step", t->feed.first_step, error);
  }
  return fsdp_world_share_error(t->world, error);
}

static fsdp_status prepare(trainer *t, fsdp_error *error) {
  t->checkpoints.options = t->options;
  t->checkpoints.setup = &t->setup;
  t->checkpoints.world = t->world;
  if (fsdp_train_checkpoints_open(&t->checkpoints, error) != FSDP_OK) return error->status;
  open_files(t, error);
  if (fsdp_world_share_error(t->world, error) != FSDP_OK) return error->status;
  create_device(t, error);
  if (fsdp_world_share_error(t->world, error) != FSDP_OK) return error->status;
  t->has_comms = create_comms(t, error) == FSDP_OK;
  if (fsdp_world_share_error(t->world, error) != FSDP_OK) return error->status;
  create_executor(t);
  return fill_state(t, error);
}

// ---- What a person sees
// --------------------------------------------------------------------------------------------

static void print_start(const trainer *t) {
  const fsdp_plan *made = t->setup.plan;
  const fsdp_memory_space_report *device = &made->memory.space[FSDP_SPACE_DEVICE];
  const fsdp_memory_space_report *host = &made->memory.space[FSDP_SPACE_HOST];
  char parameters[48], valley[24], peak[24], arena[24], host_arena[24], hint[512], tokens[48], read[24];
  printf("model:     %s, %s parameters, %s", t->setup.model_name,
         fsdp_value_print_int(fsdp_llama_parameter_count(&made->config.model), parameters, sizeof parameters),
         fsdp_train_checkpoints_found(&t->checkpoints) ? "weights from the checkpoint"
         : t->weights                                  ? "weights from its folder"
                                                       : "new weights");
  if (t->weights_bytes > 0) printf(", %s read", fsdp_value_print_bytes(t->weights_bytes, read, sizeof read));
  putchar('\n');
  printf("ranks:     %d (data=%d, fsdp=%d), strategy %s, %d unit%s, parameters in %s\n", t->world->size,
         made->config.mesh.size[FSDP_AXIS_DATA], made->config.mesh.size[FSDP_AXIS_FSDP],
         fsdp_strategy_name(made->config.strategy), made->units->count, made->units->count == 1 ? "" : "s",
         fsdp_dtype_name(made->config.param_dtype));
  printf("memory:    valley %s, peak %s, arena %s a rank, host %s; planned and verified, %d instructions\n",
         fsdp_value_print_bytes(device->valley_bytes, valley, sizeof valley),
         fsdp_value_print_bytes(device->peak_bytes, peak, sizeof peak),
         fsdp_value_print_bytes(device->arena_bytes, arena, sizeof arena),
         fsdp_value_print_bytes(host->arena_bytes + t->setup.snapshot_bytes, host_arena, sizeof host_arena),
         made->program->instr_count);
  printf("data:      %s\n", fsdp_dataset_description(t->dataset));
  if (t->feed.config.eval_dataset) {
    printf("evaluate:  on %s samples%s%s\n",
           fsdp_value_print_int(t->feed.config.eval_sampler.held_out, tokens, sizeof tokens),
           t->eval_dataset ? " of " : " held out of the data",
           t->eval_dataset ? fsdp_dataset_description(t->eval_dataset) : "");
  }
  printf("steps:     %" PRId64 " of %s tokens, %" PRId64 " an epoch\n", t->total_steps,
         fsdp_value_print_int(t->step_tokens, tokens, sizeof tokens), t->steps_per_epoch);
  if (made->config.seq > made->config.model.max_position_embeddings) {
    printf("note:      sequences of %" PRId64 " tokens are longer than the %" PRId64
           " positions that the model was made for\n",
           made->config.seq, made->config.model.max_position_embeddings);
  }
  if (fsdp_options_note(t->options, hint, (int)sizeof hint)) printf("%s\n", hint);
  if (fsdp_report_hint(made, hint, sizeof hint)) printf("hint: %s\n", hint);
  fflush(stdout);
}

static void print_summary(const trainer *t, const fsdp_step_record *last, const tally *sum) {
  const fsdp_memory_space_report *device = &t->setup.plan->memory.space[FSDP_SPACE_DEVICE];
  char speed[48], time[32], planned[2][48], measured[2][48];
  int64_t steps = last->step - t->feed.first_step;
  double tokens_per_s = (double)(steps * t->step_tokens) / (sum->run_ms / 1e3);
  printf("done:      %" PRId64 " steps in %s, loss %.4f, %s tokens/s\n", steps,
         fsdp_progress_duration(sum->run_ms / 1e3, time), last->loss,
         fsdp_value_print_int((int64_t)tokens_per_s, speed, sizeof speed));
  printf("memory:    planned valley %s, peak %s bytes a rank",
         fsdp_value_print_int(device->valley_bytes, planned[0], sizeof planned[0]),
         fsdp_value_print_int(device->peak_bytes, planned[1], sizeof planned[1]));
  if (last->measured) {
    const fsdp_measurement *memory = &last->figures.memory;
    printf("; measured valley %s, peak %s",
           fsdp_value_print_int(memory->valley_bytes[FSDP_SPACE_DEVICE], measured[0], sizeof measured[0]),
           fsdp_value_print_int(memory->peak_bytes[FSDP_SPACE_DEVICE], measured[1], sizeof measured[1]));
  }
  putchar('\n');
}

// ---- Steps
// ---------------------------------------------------------------------------------------------------------

// The numbers of the step's JSON line.
static fsdp_status write_event(trainer *t, const fsdp_step_record *record, fsdp_error *error) {
  json_t *line = fsdp_progress_json(record, t->setup.plan), *value;
  fsdp_event_scalar *scalars = fsdp_alloc(json_object_size(line) * sizeof *scalars);
  const char *key;
  int count = 0;
  json_object_foreach(line, key, value) {
    if (!json_is_number(value) || strcmp(key, "global_step") == 0) continue;
    scalars[count++] = (fsdp_event_scalar){.tag = key, .value = json_number_value(value)};
  }
  fsdp_status status = fsdp_event_file_write(t->events, record->step, scalars, count, error);
  free(scalars);
  json_decref(line);
  return status;
}

// The driver's count, asked for in the first steps, by when libraries have taken what they keep, and then
// from time to time.
static int64_t count_device_bytes(trainer *t, int64_t local) {
  const fsdp_device_table *table = t->device->table;
  if (table->used_bytes && (local <= 3 || local % 100 == 0)) t->used_bytes = table->used_bytes(t->device);
  return t->used_bytes;
}

// Of all ranks' GPUs together; 0 where it is not known.
static double peak_flops(const trainer *t) {
  if (!t->gpu->present) return 0;
  double one = fsdp_gpu_peak_flops(t->gpu->name, t->setup.plan->config.param_dtype);
  return one * t->world->size / t->gpu->sharers;
}

// Completes the record of a step that is over and hands it out. Its figures are asked for one step late, when
// they cost no waiting (runtime/exec/executor.h), but before a save of that step: what is resumed from a
// checkpoint goes on behind its step's line, whenever the run was killed.
static fsdp_status finish_step(trainer *t, fsdp_step_record *record, tally *sum, fsdp_error *error) {
  char message[512];
  int64_t local = record->step - t->feed.first_step; // the executor counts its own
  bool sound = fsdp_executor_figures(t->executor, local, &record->figures, message, sizeof message);
  FSDP_CHECK(sound, "step %" PRId64 ": %s", record->step, message);
  record->measured = t->options->measure;
  record->peak_flops = peak_flops(t);
  record->device_used_bytes = count_device_bytes(t, local);
  record->data_ms = fsdp_feed_take_ms(&t->feed, record->step - 1);
  sum->line_loss += record->loss;
  sum->line_ms += record->total_ms;
  sum->run_ms += record->total_ms;
  sum->line_steps++;
  record->running_loss = sum->line_loss / (double)sum->line_steps;
  fsdp_status status = FSDP_OK;
  if (t->log) {
    json_t *line = fsdp_progress_json(record, t->setup.plan);
    status = fsdp_metrics_log_write(t->log, line, error);
    json_decref(line);
  }
  if (t->events && status == FSDP_OK) status = write_event(t, record, error);
  bool shown = record->step % t->options->log_freq == 0 || local == 1 || record->step == t->total_steps ||
               record->evaluated;
  if (!shown) return status;
  fsdp_progress_rate rate = {.tokens_per_s =
                                 (double)(sum->line_steps * t->step_tokens) / (sum->line_ms / 1e3),
                             .ms_per_step = sum->line_ms / (double)sum->line_steps};
  if (is_first(t)) fsdp_progress_print(record, t->setup.plan, &rate, stdout);
  if (is_first(t) && record->evaluated) fsdp_progress_print_evaluation(record, stdout);
  sum->line_loss = sum->line_ms = 0;
  sum->line_steps = 0;
  return status;
}

static fsdp_step_record make_record(trainer *t, const fsdp_step_result *result, double total_ms) {
  int64_t done = t->feed.first_step + result->step - 1, position = done + t->feed.sample_shift;
  return (fsdp_step_record){.step = done + 1,
                            .total_steps = t->total_steps,
                            .epoch = position / t->steps_per_epoch,
                            .epoch_step = position % t->steps_per_epoch + 1,
                            .steps_per_epoch = t->steps_per_epoch,
                            .loss = (double)result->loss,
                            .lr = fsdp_learning_rate_at(&t->feed.config.rate, done),
                            .grad_norm = (double)result->grad_norm,
                            .total_ms = total_ms,
                            .checkpoint_ms = fsdp_train_checkpoints_take_ms(&t->checkpoints),
                            .snapshot_bytes = t->setup.snapshot_bytes,
                            .tokens = t->step_tokens};
}

// After step `step`: what every rank knows then is the greatest of the signals that ranks have received (0:
// none), whether rank 0 could write its log, whether all have written their part of a checkpoint, and after
// which step to ask again. One exchange, so that all stop after the same step; as it costs up to a
// millisecond where ranks share cores, it is made a few times a second and not in every short step.
static fsdp_status agree_to_stop(trainer *t, const fsdp_step_record *record, int *stop_signal, bool *written,
                                 fsdp_error *error) {
  *written = false;
  if (record->step < t->next_agreement) return FSDP_OK;
  struct {
    double step_ms;
    int signal_number, failed, written;
  } mine = {record->total_ms, fsdp_stop_signal(), error->status != FSDP_OK,
            fsdp_train_checkpoints_is_written(&t->checkpoints)},
    *all = fsdp_alloc((size_t)t->world->size * sizeof *all);
  fsdp_world_gather(t->world, &mine, (int64_t)sizeof mine, all);
  bool failed = false;
  double longest_ms = 0;
  *written = true;
  for (int i = 0; i < t->world->size; i++) {
    if (all[i].signal_number > *stop_signal) *stop_signal = all[i].signal_number;
    failed = failed || all[i].failed;
    *written = *written && all[i].written;
    longest_ms = fmax(longest_ms, all[i].step_ms);
  }
  free(all);
  t->next_agreement = record->step + (int64_t)fmin(1000, fmax(1, AGREEMENT_MS / fmax(longest_ms, 1e-3)));
  return failed ? fsdp_world_share_error(t->world, error) : FSDP_OK;
}

static fsdp_status fail_not_finite(const trainer *t, const fsdp_step_record *record, fsdp_error *error) {
  return fsdp_fail(
      error, FSDP_ERR_NOT_FINITE,
      "the loss is %g at step %" PRId64 " (learning rate %g): lower --lr %g (%s), raise --warmup-steps, or "
      "look at the data",
      record->loss, record->step, record->lr, t->options->lr, fsdp_options_place(t->options, "lr"));
}

// Evaluates where it is due after the record's step; returns the time it took, which is no step's.
static int64_t evaluate(trainer *t, fsdp_step_record *record) {
  int64_t frequency = t->options->eval_freq;
  bool due = record->step == t->total_steps || (frequency > 0 && record->step % frequency == 0);
  if (!t->feed.config.eval_dataset || !due) return 0;
  int64_t began_ns = fsdp_profile_now_ns();
  record->eval_loss = fsdp_feed_evaluate(&t->feed, t->executor);
  record->evaluated = true;
  int64_t took_ns = fsdp_profile_now_ns() - began_ns;
  record->eval_ms = (double)took_ns / 1e6;
  return took_ns;
}

static fsdp_status run_steps(trainer *t, int *stop_signal, fsdp_error *error) {
  fsdp_step_record record = {0};
  tally sum = {0};
  int64_t before_ns = fsdp_profile_now_ns(), first = t->feed.first_step + 1;
  bool finished = true;
  fsdp_status status = FSDP_OK;
  for (int64_t step = first; step <= t->total_steps && status == FSDP_OK && !*stop_signal; step++) {
    fsdp_step_result result;
    bool written;
    fsdp_executor_run_step(t->executor, &result);
    int64_t now_ns = fsdp_profile_now_ns();
    if (!finished) finish_step(t, &record, &sum, error);
    record = make_record(t, &result, (double)(now_ns - before_ns) / 1e6);
    before_ns = now_ns;
    status = agree_to_stop(t, &record, stop_signal, &written, error);
    if (status == FSDP_OK && !isfinite(record.loss)) status = fail_not_finite(t, &record, error);
    if (status == FSDP_OK && !*stop_signal) before_ns += evaluate(t, &record);
    finished = status == FSDP_OK && fsdp_train_checkpoints_is_due(&t->checkpoints, step);
    if (finished) finish_step(t, &record, &sum, error);
    if (status == FSDP_OK) {
      fsdp_train_checkpoints_after_step(&t->checkpoints, t->executor, &t->feed, step, written);
    }
  }
  fsdp_executor_drain(t->executor);
  if (record.step == 0) {
    if (is_first(t)) printf("done:      nothing is left of %" PRId64 " steps\n", t->total_steps);
    return FSDP_OK;
  }
  if (status != FSDP_OK && status != FSDP_ERR_NOT_FINITE) return status;
  fsdp_error last_error = {0};
  if (status == FSDP_OK) last_error = *error; // what rank 0 may know since the ranks last asked each other
  if (!finished) finish_step(t, &record, &sum, &last_error);
  if (status == FSDP_OK) {
    status = fsdp_train_checkpoints_finish(&t->checkpoints, t->executor, &t->feed, record.step, error);
  }
  if (fsdp_world_share_error(t->world, &last_error) != FSDP_OK && status == FSDP_OK) {
    *error = last_error;
    return error->status;
  }
  if (status == FSDP_OK && is_first(t)) {
    if (*stop_signal)
      printf("stopped by %s after step %" PRId64 "\n", fsdp_stop_name(*stop_signal), record.step);
    print_summary(t, &record, &sum);
  }
  return status;
}

// ---- The run
// -------------------------------------------------------------------------------------------------------

static void destroy(trainer *t) {
  fsdp_train_checkpoints_close(&t->checkpoints);
  fsdp_executor_destroy(t->executor);
  if (t->has_comms) fsdp_comms_destroy(&t->comms);
  if (t->device) t->device->table->destroy(t->device);
  fsdp_metrics_log_close(t->log, NULL);
  fsdp_event_file_close(t->events);
  fsdp_weights_close(t->weights);
  fsdp_dataset_close(t->dataset);
  fsdp_dataset_close(t->eval_dataset);
  fsdp_setup_destroy(&t->setup);
}

static void print_asked_for(const trainer *t) {
  const fsdp_plan *made = t->setup.plan;
  if (t->options->print_model) fsdp_units_print_tree(made->units, made->graph, stdout);
  if (t->options->print_program) fsdp_program_print(made->program, stdout);
  if (t->options->dry_run) fsdp_report_print(made, t->setup.model_name, stdout);
  fflush(stdout);
}

fsdp_status fsdp_train_run(const fsdp_train_config *config, int *stop_signal, fsdp_error *error) {
  trainer t = {
      .world = config->world, .options = config->options, .placement = config->placement, .gpu = config->gpu};
  fsdp_stop_install();
  fsdp_status status = plan(&t, error);
  if (status == FSDP_OK && is_first(&t)) print_asked_for(&t);
  if (status == FSDP_OK && !t.options->dry_run) {
    status = prepare(&t, error);
    if (status == FSDP_OK) {
      fsdp_placement_print(t.world, t.placement, stdout);
      if (is_first(&t)) print_start(&t);
      status = run_steps(&t, stop_signal, error);
    }
  }
  destroy(&t);
  return status;
}
