#include "launcher/train/train.h"

#include "launcher/report/whole_file.h"
#include "launcher/setup/rank_memory.h"
#include "launcher/train/trainer.h"
#include "runtime/exec/access_trace.h"
#include "runtime/exec/self_test.h"

#include <inttypes.h>
#include <stdlib.h>
#include <xxhash.h>

// What a trace of a step may take; more would only come from very many micro-batches, which repeat each
// other.
#define TRACE_BYTES_MAX (INT64_C(8) << 30)

// A trace grows with the micro-batches of a step: if it would be too large there is none.
static fsdp_status choose_trace(fsdp_trainer *t, fsdp_error *error) {
  int64_t bytes = fsdp_access_trace_bytes(t->setup.plan->program);
  t->measures = t->options->measure && bytes <= TRACE_BYTES_MAX;
  if (t->measures || !t->options->measure || !fsdp_options_given(t->options, "measure")) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_CAPACITY,
                   "--set measure=on (%s): the trace of a step of --grad-accum %" PRId64
                   " micro-batches takes %" PRId64 " bytes: leave it out, or use --set measure=off",
                   fsdp_options_place(t->options, "measure"), t->options->grad_accum, bytes);
}

static fsdp_status find_memory(fsdp_trainer *t, fsdp_error *error) {
  return fsdp_rank_memory_find(t->world, t->gpu, &t->ranks, error);
}

static fsdp_status plan(fsdp_trainer *t, fsdp_error *error) {
  fsdp_status status = fsdp_setup_create(t->options, t->program, &t->ranks, &t->setup, error);
  return status == FSDP_OK ? choose_trace(t, error) : status;
}

static fsdp_status agree_on_program(fsdp_trainer *t, fsdp_error *error) {
  const fsdp_plan *plan = t->setup.plan;
  fsdp_status status =
      fsdp_world_agree(t->world, "the step program", fsdp_program_hash(plan->program), error);
  const fsdp_dim_axes *batch = &plan->specs->input.dim[0]; // is in no instruction
  uint64_t order = XXH64(batch->axes, (size_t)batch->count, 0);
  return status ? status : fsdp_world_agree(t->world, "the order of the batch's axes", order, error);
}

// What --self-test asks for. One rank does it for all, before it takes memory for the run.
static fsdp_status self_test(fsdp_trainer *t, fsdp_error *error) {
  fsdp_self_test_report report;
  char text[FSDP_SELF_TEST_TEXT];
  fsdp_board_enter(FSDP_ACTIVITY_LOADING);
  if (!t->options->self_test || !fsdp_trainer_is_first(t)) return FSDP_OK;
  fsdp_status status = fsdp_self_test(t->setup.plan, &report, error);
  if (status) return status;
  fprintf(t->options->print_sharding ? stderr : stdout, "self-test: %s\n",
          fsdp_self_test_print(&report, text));
  fflush(stdout);
  return FSDP_OK;
}

static fsdp_status find_checkpoint(fsdp_trainer *t, fsdp_error *error) {
  fsdp_board_enter(FSDP_ACTIVITY_LOADING);
  t->checkpoints.options = t->options;
  t->checkpoints.setup = &t->setup;
  t->checkpoints.world = t->world;
  return fsdp_train_checkpoints_open(&t->checkpoints, error);
}

static fsdp_status create_session(fsdp_trainer *t, fsdp_error *error) {
  fsdp_session_config config = {
      .plan = t->setup.plan,
      .world = t->world,
      .gpu = t->gpu,
      .threads = fsdp_trainer_threads(t),
      .comm_timeout_s = (int)t->options->comm_timeout,
      .nccl_register = (fsdp_nccl_register)t->options->nccl_register,
      .nccl_ctas = (fsdp_nccl_ctas)t->options->nccl_ctas,
      .callbacks = {.context = &t->feed,
                    .feed_step = fsdp_feed_step,
                    .feed_batch = fsdp_feed_batch,
                    .publish = fsdp_feed_publish,
                    .observe = t->options->routing_record ? fsdp_feed_observe : NULL},
      .seed = (uint64_t)t->options->seed,
      .measure = t->measures,
      .profile = true,
      .traced = {t->options->trace ? t->options->trace_first : 0,
                 t->options->trace ? t->options->trace_last : 0}};
  return fsdp_session_create(&config, &t->session, error);
}

static fsdp_routing_config routing_of(const fsdp_trainer *t, const char *path, int64_t first_step) {
  return (fsdp_routing_config){.path = path,
                               .plan = t->setup.plan,
                               .sampler = &t->feed.config.sampler,
                               .data = t->checkpoints.data_fingerprint,
                               .shift = t->feed.sample_shift,
                               .first_step = first_step,
                               .steps = t->total_steps};
}

// The files of --routing-record and --routing-replay, of which nothing is written yet.
static fsdp_status open_routing(fsdp_trainer *t, fsdp_error *error) {
  const fsdp_options *o = t->options;
  if (!o->routing_record && !o->routing_replay) return FSDP_OK;
  fsdp_status status = FSDP_OK;
  if (t->feed.config.spreads)
    status = fsdp_fail(error, FSDP_ERR_OPTION,
                       "--routing-record and --routing-replay are of rows in the order of the data, and with "
                       "--document-mask on ranks share rows by their work: use --document-mask off");
  else if (o->routing_record && t->setup.plan->config.backend->device != FSDP_OP_CPU)
    status =
        fsdp_fail(error, FSDP_ERR_OPTION,
                  "--routing-record %s reads the memory of CPU ranks: use --backend cpu", o->routing_record);
  const fsdp_routing_config replayed = routing_of(t, o->routing_replay, 0);
  if (!status && o->routing_replay) status = fsdp_routing_open_replay(&replayed, &t->replay_routing, error);
  if (!status && o->routing_record && fsdp_trainer_is_first(t) &&
      fsdp_whole_file_try("routing-record", o->routing_record, error) == FSDP_OK)
    fsdp_routing_check_path(o->routing_record, error);
  t->feed.config.replay = t->replay_routing;
  return fsdp_world_share_error(t->world, error);
}

static void print_record(const fsdp_routing_config *recorded, int64_t kept_from) {
  if (recorded->first_step == 0) return;
  if (kept_from < recorded->first_step)
    printf("note:      --routing-record %s is continued: steps %" PRId64 " to %" PRId64 " are those it has\n",
           recorded->path, kept_from + 1, recorded->first_step);
  else
    printf("note:      --routing-record %s is not there: it begins with step %" PRId64 "\n", recorded->path,
           recorded->first_step + 1);
  fflush(stdout);
}

static fsdp_status begin_record(fsdp_trainer *t, fsdp_error *error) {
  const int64_t first_step = t->feed.first_step;
  const fsdp_routing_config recorded = routing_of(t, t->options->routing_record, first_step);
  if (first_step >= t->total_steps) return FSDP_OK;
  const fsdp_routing_config replayed = routing_of(t, t->options->routing_replay, first_step);
  if (t->replay_routing && fsdp_routing_check_start(t->replay_routing, &replayed, error) != FSDP_OK)
    return error->status;
  if (!recorded.path) return FSDP_OK;
  int64_t kept_from;
  if (fsdp_trainer_is_first(t) && fsdp_routing_begin_record(&recorded, &kept_from, error) == FSDP_OK)
    print_record(&recorded, kept_from);
  if (fsdp_world_share_error(t->world, error) != FSDP_OK) return error->status;
  fsdp_routing_open_record(&recorded, &t->record_routing, error);
  t->feed.config.record = t->record_routing;
  return fsdp_world_share_error(t->world, error);
}

static fsdp_status print_start(fsdp_trainer *t, fsdp_error *error) {
  (void)error;
  fsdp_binding_print(t->world, t->binding, stdout);
  if (fsdp_trainer_is_first(t)) fsdp_train_print_start(t);
  return FSDP_OK;
}

// ---- The run

// One thing that a run does. What is local may fail on one rank alone, which all learn before they continue;
// everything else returns alike on all of them.
typedef struct stage {
  fsdp_status (*run)(fsdp_trainer *t, fsdp_error *error);
  bool local;
} stage;

static const stage planning[] = {
    {fsdp_train_agree_on_model, false},
    {fsdp_train_agree_on_profile, false},
    {find_memory, false},
    {plan, true},
    {agree_on_program, false},
    {self_test, true},
};

// What of a run's start a dry run does: nothing that takes time, or that writes.
static const stage checking[] = {
    {fsdp_train_open_model, true}, {fsdp_train_find_data, true},          {fsdp_train_agree_on_files, false},
    {fsdp_train_check_data, true}, {fsdp_train_agree_on_schedule, false},
};

static const stage training[] = {
    {find_checkpoint, false},        {fsdp_train_open_model, true},
    {fsdp_train_find_data, true},    {fsdp_train_agree_on_files, false},
    {fsdp_train_open_files, true},   {fsdp_train_agree_on_schedule, false},
    {open_routing, false},           {create_session, false},
    {fsdp_train_start_state, false}, {fsdp_train_resume, false},
    {fsdp_train_trace_check, false}, {begin_record, false},
    {fsdp_train_begin, false},       {print_start, false},
    {fsdp_train_run_steps, false},   {fsdp_train_finish, false},
};

// A dry run does those before the session.
enum { EVALUATION_CHECKS = 5 };
static const stage evaluating[] = {
    {fsdp_train_eval_find_checkpoint, false},
    {fsdp_train_open_model, true},
    {fsdp_train_find_data, true},
    {fsdp_train_agree_on_files, false},
    {fsdp_train_eval_open_files, true},
    {create_session, false},
    {fsdp_train_eval_load, false},
    {fsdp_train_eval_print_start, false},
    {fsdp_train_eval_run, false},
};

typedef struct stage_list {
  const stage *stages;
  size_t count;
} stage_list;
#define LIST(array) ((stage_list){array, sizeof array / sizeof *array})

static fsdp_status run_stages(fsdp_trainer *t, stage_list list, fsdp_error *error) {
  fsdp_status status = FSDP_OK;
  for (size_t i = 0; i < list.count && status == FSDP_OK; i++) {
    error->status = FSDP_OK;
    status = list.stages[i].run(t, error);
    if (list.stages[i].local) status = fsdp_world_share_error(t->world, error);
  }
  return status;
}

static void destroy(fsdp_trainer *t) {
  fsdp_train_log_close(&t->log);
  fsdp_train_checkpoints_close(&t->checkpoints);
  fsdp_session_destroy(&t->session);
  fsdp_feed_destroy(&t->feed);
  fsdp_routing_close(t->record_routing);
  fsdp_routing_close(t->replay_routing);
  fsdp_weights_close(t->weights);
  fsdp_dataset_close(t->dataset);
  fsdp_dataset_close(t->eval_dataset);
  fsdp_data_paths_destroy(&t->data_paths);
  fsdp_data_paths_destroy(&t->eval_paths);
  fsdp_setup_destroy(&t->setup);
  free(t->sampled);
  free(t->loads);
}

// Planning, what was asked for, then the run; of a dry run its checks, before anything is printed.
fsdp_status fsdp_train_run(const fsdp_train_config *config, int *stop_signal, fsdp_error *error) {
  const bool dry = config->options->dry_run, trains = config->program == FSDP_PROGRAM_TRAIN;
  const stage_list checks = trains ? LIST(checking) : (stage_list){evaluating, EVALUATION_CHECKS};
  fsdp_trainer t = {.world = config->world,
                    .program = config->program,
                    .options = config->options,
                    .binding = config->binding,
                    .gpu = config->gpu,
                    .why_cpu = config->why_cpu,
                    .sample = config->sample,
                    .codec = config->codec};
  fsdp_status status = run_stages(&t, LIST(planning), error);
  if (status == FSDP_OK && dry) status = run_stages(&t, checks, error);
  if (status == FSDP_OK && fsdp_trainer_is_first(&t)) fsdp_train_print_asked_for(&t);
  if (status == FSDP_OK && dry && fsdp_trainer_is_first(&t)) fsdp_train_print_checked(&t);
  if (status == FSDP_OK && !dry) status = run_stages(&t, trains ? LIST(training) : LIST(evaluating), error);
  *stop_signal = t.stop_signal;
  destroy(&t);
  return status;
}
