// What a run reads and writes: the model's folder, data, logs.
#include "launcher/report/whole_file.h"
#include "launcher/setup/data.h"
#include "launcher/setup/documents_choice.h"
#include "launcher/train/trainer.h"
#include "runtime/base/paths.h"
#include "runtime/base/text.h"
#include "runtime/data/mapped_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

// Reading more of the data than this before the first step is announced.
#define ANNOUNCED_BYTES (INT64_C(4) << 30)

// Steps are counted in fp32 on the device, which is exact up to here.
#define STEPS_MAX (INT64_C(1) << 24)

fsdp_status fsdp_train_count_steps(fsdp_trainer *t, fsdp_error *error) {
  const fsdp_options *o = t->options;
  t->steps_per_epoch = fsdp_sampler_steps_per_epoch(&t->feed.config.sampler);
  int64_t steps = fsdp_sampler_steps(&t->feed.config.sampler, o->num_epochs);
  if (steps < INT64_MAX) steps -= t->feed.sample_shift;
  if (o->max_steps && o->max_steps < steps) steps = o->max_steps;
  if (steps > STEPS_MAX) {
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "--num-epochs %g (%s) is more than %" PRId64 " steps: end sooner with --max-steps",
                     o->num_epochs, fsdp_options_place(o, "num-epochs"), STEPS_MAX);
  }
  fsdp_learning_rate *rate = &t->feed.config.rate;
  t->total_steps = rate->total_steps = steps;
  if (o->warmup_ratio > 0) rate->warmup_steps = fsdp_learning_rate_warmup(rate, o->warmup_ratio);
  return FSDP_OK;
}

// What to evaluate on: separate data, all of it, or a part of the training data.
static fsdp_status open_evaluation(fsdp_trainer *t, const fsdp_dataset_config *training,
                                   fsdp_feed_config *feed, fsdp_error *error) {
  const fsdp_options *o = t->options;
  if (!fsdp_options_evaluate(o)) return FSDP_OK;
  feed->eval_dataset = t->dataset;
  feed->eval_sampler = feed->sampler;
  if (o->eval_data) {
    fsdp_dataset_config data = *training;
    data.files = &t->eval_paths;
    data.global_batch = 1;
    fsdp_status status = fsdp_dataset_open(&data, &t->eval_dataset, error);
    if (status != FSDP_OK) return status;
    const int64_t samples = t->eval_dataset->sample_count;
    feed->eval_dataset = t->eval_dataset;
    feed->eval_sampler =
        (fsdp_sampler){.seed = feed->sampler.seed, .sample_count = samples, .held_out = samples};
  }
  feed->eval_sampler.global_batch = feed->rows.batch * feed->ranks;
  return FSDP_OK;
}

// The option that requires documents to be told apart, or NULL. A run's evaluation data alone may have them.
static const char *separates(const fsdp_trainer *t) {
  const fsdp_options *o = t->options;
  const fsdp_plan_config *config = &t->setup.plan->config;
  const bool of_all = t->program == FSDP_PROGRAM_TRAIN && !o->eval_data;
  if (config->loss_of_documents) return "--loss-mean documents";
  return config->documents && (of_all || fsdp_options_given(o, "document-mask")) ? "--document-mask on"
                                                                                 : NULL;
}

fsdp_dataset_config fsdp_train_dataset_config(const fsdp_trainer *t) {
  const fsdp_options *o = t->options;
  const fsdp_plan_config *config = &t->setup.plan->config;
  fsdp_dataset_config data =
      fsdp_data_config(o, &t->data_paths, &t->tokenizer, config->seq, config->model.vocab_size);
  data.separates = separates(t);
  data.separates_all = config->loss_of_documents;
  data.verify = o->verify_data && (!o->dry_run || fsdp_options_given(o, "verify-data"));
  data.share = t->world->local_rank;
  data.shares = t->world->local_size;
  return data;
}

fsdp_feed_config fsdp_train_feed_config(const fsdp_trainer *t) {
  const fsdp_plan *plan = t->setup.plan;
  int rank, ranks = fsdp_plan_batch_part(plan, t->world->rank, &rank);
  return (fsdp_feed_config){.ranks = ranks,
                            .rank = rank,
                            .rows = plan->rows,
                            .mesh = plan->units->mesh,
                            .world_rank = t->world->rank,
                            .micro_batches = plan->config.micro_batches,
                            .loss_of_documents = plan->config.loss_of_documents,
                            .optimizer = plan->config.optimizer};
}

static fsdp_status open_data(fsdp_trainer *t, fsdp_error *error) {
  const fsdp_options *o = t->options;
  const fsdp_plan_config *config = &t->setup.plan->config;
  fsdp_feed_config feed = fsdp_train_feed_config(t);
  fsdp_dataset_config data = fsdp_train_dataset_config(t);
  data.global_batch = config->batch * config->micro_batches * feed.ranks;
  fsdp_status status = fsdp_dataset_open(&data, &t->dataset, error);
  if (status != FSDP_OK) return status;
  t->step_tokens = data.global_batch * config->seq;
  feed.dataset = t->dataset;
  feed.drop_seed = (uint64_t)o->seed;
  feed.spreads = config->documents && t->dataset->how.documents > 0;
  feed.hyper = config->hyper;
  feed.norm_limit = config->grad_clip > 0 ? fsdp_plan_norm_limit(config) : 0;
  feed.rate = (fsdp_learning_rate){.schedule = (fsdp_lr_schedule)o->lr_schedule,
                                   .lr = o->lr,
                                   .min_lr = o->min_lr,
                                   .warmup_steps = o->warmup_steps,
                                   .decay_ratio = o->lr_decay_ratio};
  status = fsdp_data_sampler(o, t->dataset, data.global_batch, &feed.sampler, error);
  if (status == FSDP_OK) status = open_evaluation(t, &data, &feed, error);
  if (status != FSDP_OK) return status;
  fsdp_feed_create(&t->feed, &feed);
  return fsdp_train_count_steps(t, error);
}

// A checkpoint's folder looks like a model's, but its weights lie in shards beside that.
static fsdp_status check_folder(const fsdp_trainer *t, fsdp_error *error) {
  char parent[4096];
  if (!t->setup.folder || t->setup.load_weights || t->options->init != FSDP_INIT_AUTO ||
      fsdp_train_checkpoints_found(&t->checkpoints) || (t->options->dry_run && t->options->experiment) ||
      !fsdp_has_file(t->setup.folder, "../checkpoint.json"))
    return FSDP_OK; // of an experiment a dry run does not look whether it resumes
  const char *name = strrchr(t->setup.folder, '/');
  snprintf(parent, sizeof parent, "%s/..", t->setup.folder);
  if (name && strcmp(name, "/model") == 0) parent[name - t->setup.folder] = 0;
  return fsdp_fail(
      error, FSDP_ERR_OPTION,
      "--model %.200s (%s): describes a checkpoint's model and holds no weights: to train on from "
      "it, or to evaluate it, use --resume %.200s with -e NAME; to begin with its weights run fsdp_export "
      "%.200s --to DIR and give --model DIR; for new weights use --init random",
      t->setup.folder, fsdp_options_place(t->options, "model"), parent, parent);
}

// Weights that were drawn tell nothing of a model, so they are evaluated only on request.
static fsdp_status check_weights(const fsdp_trainer *t, fsdp_error *error) {
  const fsdp_options *o = t->options;
  const bool is_preset = !t->setup.folder;
  const bool has_weights = t->setup.load_weights || o->experiment; // whose checkpoint is loaded
  if (t->program != FSDP_PROGRAM_EVAL || has_weights || o->init == FSDP_INIT_RANDOM) return FSDP_OK;
  return fsdp_fail(
      error, is_preset ? FSDP_ERR_OPTION : FSDP_ERR_INPUT,
      "--model %.300s (%s): %s has no weights to evaluate: %s, name an experiment with -e NAME, or "
      "give --init random",
      o->model, fsdp_options_place(o, "model"), is_preset ? "a preset" : "the folder",
      is_preset ? "give a model's folder" : "download them (*.safetensors)");
}

fsdp_status fsdp_train_open_model(fsdp_trainer *t, fsdp_error *error) {
  fsdp_status status = check_folder(t, error);
  if (status == FSDP_OK) status = check_weights(t, error);
  if (status == FSDP_OK)
    status = fsdp_train_find_tokenizer(t->options, &t->setup, t->setup.plan->config.model.vocab_size,
                                       &t->tokenizer, error);
  if (status == FSDP_OK && t->setup.load_weights) {
    status =
        fsdp_weights_open(t->setup.folder, t->setup.plan->graph, t->setup.stored_vocab, &t->weights, error);
  }
  return status;
}

// What is evaluated on is used in full.
static fsdp_status refuse_weights(const fsdp_trainer *t, const char *name, const fsdp_data_paths *paths,
                                  fsdp_error *error) {
  if (!paths->group_count) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_OPTION,
                   "--%s %.300s (%s): is used in full, so its files have no weights: leave them out", name,
                   paths->list, fsdp_options_place(t->options, name));
}

fsdp_status fsdp_train_find_data(fsdp_trainer *t, fsdp_error *error) {
  const fsdp_options *o = t->options;
  fsdp_status status = fsdp_documents_find(o, error);
  if (status == FSDP_OK) status = fsdp_data_paths_find("data", o->data, &t->data_paths, error);
  if (status == FSDP_OK) status = fsdp_data_paths_find("eval-data", o->eval_data, &t->eval_paths, error);
  if (status == FSDP_OK) status = refuse_weights(t, "eval-data", &t->eval_paths, error);
  if (status == FSDP_OK && t->program == FSDP_PROGRAM_EVAL)
    status = refuse_weights(t, "data", &t->data_paths, error);
  return status;
}

static int64_t bytes_of(const fsdp_data_paths *paths) {
  int64_t bytes = 0;
  for (int i = 0; i < paths->count; i++) {
    struct stat information;
    if (stat(paths->files[i], &information) == 0) bytes += information.st_size;
  }
  return bytes;
}

// Why nothing seems to happen for a while.
static void announce_reading(const fsdp_trainer *t) {
  int64_t bytes = bytes_of(&t->data_paths) + bytes_of(&t->eval_paths);
  if (!t->options->verify_data || bytes <= ANNOUNCED_BYTES) return;
  printf("data:      checking all tokens, %s, once; --verify-data off leaves it out\n",
         fsdp_print_bytes(bytes).text);
  fflush(stdout);
}

fsdp_status fsdp_train_check_data(fsdp_trainer *t, fsdp_error *error) {
  if (!t->options->data && !t->options->eval_data) return FSDP_OK;
  fsdp_status status = open_data(t, error);
  return fsdp_mapped_file_lost(NULL) ? fsdp_mapped_file_lost(error) : status; // the cause of any other
}

fsdp_status fsdp_train_open_files(fsdp_trainer *t, fsdp_error *error) {
  const fsdp_options *o = t->options;
  if (fsdp_trainer_is_first(t)) announce_reading(t);
  fsdp_status status = open_data(t, error);
  if (fsdp_mapped_file_lost(NULL) != FSDP_OK) status = fsdp_mapped_file_lost(error); // the cause of any other
  if (status != FSDP_OK || !fsdp_trainer_is_first(t)) return status;
  status = fsdp_train_log_open(o, &t->log, error);
  if (status == FSDP_OK && o->memory_profile)
    status = fsdp_whole_file_try("memory-profile", o->memory_profile, error);
  if (status == FSDP_OK && o->trace) status = fsdp_whole_file_try("trace", o->trace, error);
  return status;
}
