// fsdp_eval's part of the trainer: a plan of evaluations alone, its state, the loss on all of the data, and a
// sample.
#include "launcher/report/plan_notes.h"
#include "launcher/text/next_token.h"
#include "launcher/train/resume.h"
#include "launcher/train/trainer.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/text.h"
#include "runtime/data/mapped_file.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

fsdp_status fsdp_train_eval_find_checkpoint(fsdp_trainer *t, fsdp_error *error) {
  fsdp_board_enter(FSDP_ACTIVITY_LOADING);
  t->checkpoints.options = t->options;
  t->checkpoints.lock = FSDP_CHECKPOINT_UNLOCKED;
  if (!t->options->experiment) return FSDP_OK;
  const fsdp_resume_config config = {.world = t->world,
                                     .plan = t->setup.plan,
                                     .path = t->options->resume,
                                     .folder = t->options->resume,
                                     .place = fsdp_options_place(t->options, "resume")};
  return fsdp_resume_create(&config, &t->checkpoints.resume, error);
}

// All samples of --data, each once.
static fsdp_status open_data(fsdp_trainer *t, fsdp_feed_config *feed, fsdp_error *error) {
  const fsdp_dataset_config data = fsdp_train_dataset_config(t);
  fsdp_status status = fsdp_dataset_open(&data, &t->eval_dataset, error);
  if (fsdp_mapped_file_lost(NULL) != FSDP_OK) status = fsdp_mapped_file_lost(error);
  if (status != FSDP_OK) return status;
  const int64_t samples = t->eval_dataset->sample_count;
  feed->eval_dataset = t->eval_dataset;
  feed->eval_sampler = (fsdp_sampler){
      .global_batch = feed->rows.batch * feed->ranks, .sample_count = samples, .held_out = samples};
  return FSDP_OK;
}

fsdp_status fsdp_train_eval_open_files(fsdp_trainer *t, fsdp_error *error) {
  fsdp_feed_config feed = fsdp_train_feed_config(t);
  fsdp_status status = t->options->data ? open_data(t, &feed, error) : FSDP_OK;
  fsdp_feed_create(&t->feed, &feed);
  return status;
}

fsdp_status fsdp_train_eval_load(fsdp_trainer *t, fsdp_error *error) {
  if (!fsdp_train_checkpoints_found(&t->checkpoints)) return fsdp_train_start_state(t, error);
  return fsdp_resume_load(t->checkpoints.resume, t->session.executor, error);
}

// What makes the numbers say less than they seem to.
static void warn(const fsdp_trainer *t, const fsdp_checkpoint *c) {
  char note[256];
  if (!fsdp_trainer_is_first(t)) return;
  if (*t->options->replaced) fprintf(stderr, "fsdp_eval: warning: %s\n", t->options->replaced);
  if (fsdp_positions_note(t->setup.plan, note, sizeof note))
    fprintf(stderr, "fsdp_eval: warning: %s\n", note);
  const char *trained = c ? json_string_value(json_object_get(c->options, "data")) : NULL;
  if (trained && t->options->data && strcmp(trained, t->options->data) == 0)
    fprintf(stderr,
            "fsdp_eval: warning: --data %.300s (%s) is what the run was trained on: its loss says little of "
            "other data\n",
            trained, fsdp_options_place(t->options, "data"));
}

fsdp_status fsdp_train_eval_print_start(fsdp_trainer *t, fsdp_error *error) {
  const fsdp_checkpoint *c = fsdp_resume_checkpoint(t->checkpoints.resume);
  (void)error;
  warn(t, c);
  if (t->options->json) return FSDP_OK;
  fsdp_binding_print(t->world, t->binding, stdout);
  if (!fsdp_trainer_is_first(t)) return FSDP_OK;
  fsdp_train_print_place(t);
  if (c)
    printf("from:      %s, step %" PRId64 "\n", fsdp_resume_path(t->checkpoints.resume), c->progress.step);
  if (t->eval_dataset) fsdp_train_eval_print_data(t);
  const char *note = fsdp_sample_note(t->sample, t->options, t->codec);
  if (note) printf("note:      %s\n", note);
  fflush(stdout);
  return FSDP_OK;
}

// ---- The results

typedef struct evaluated {
  double loss, seconds; // on the data, if there is any
  char *text;           // sampled
  double sample_seconds;
  fsdp_step_stats stats; // of the last run of the program, if measured
} evaluated;

static void print_text(const fsdp_trainer *t, const evaluated *e) {
  if (t->eval_dataset)
    printf("loss:      %.6f  perplexity %.4f  over %s %s%s in %s\n", e->loss,
           fsdp_progress_perplexity(e->loss), fsdp_print_int(t->feed.eval_counted).text,
           t->feed.config.loss_of_documents ? "document" : "token", fsdp_plural(t->feed.eval_counted),
           fsdp_progress_duration(e->seconds).text);
  char ending[FSDP_SAMPLE_ENDING_BYTES];
  if (e->text)
    printf("sample:    %" PRId64 " token%s behind %" PRId64 " in %s%s\n%s\n", t->sample->new_count,
           fsdp_plural(t->sample->new_count), t->sample->prompt_count,
           fsdp_progress_duration(e->sample_seconds).text, fsdp_sample_ending(t->sample, ending),
           fsdp_sample_shown(e->text));
  fsdp_train_print_memory(t, t->measures ? &e->stats.memory : NULL);
}

static void put_memory(const fsdp_trainer *t, const evaluated *e, json_t *root) {
  const fsdp_memory_space_report *space = t->setup.plan->memory.space;
  const fsdp_measurement *memory = &e->stats.memory;
  json_object_set_new(root, "planned_valley_bytes", json_integer(space[FSDP_SPACE_DEVICE].valley_bytes));
  json_object_set_new(root, "planned_peak_bytes", json_integer(space[FSDP_SPACE_DEVICE].peak_bytes));
  json_object_set_new(root, "arena_bytes", json_integer(space[FSDP_SPACE_DEVICE].arena_bytes));
  json_object_set_new(root, "host_bytes", json_integer(space[FSDP_SPACE_HOST].arena_bytes));
  if (!t->measures) return;
  json_object_set_new(root, "valley_bytes", json_integer(memory->valley_bytes[FSDP_SPACE_DEVICE]));
  json_object_set_new(root, "peak_bytes", json_integer(memory->peak_bytes[FSDP_SPACE_DEVICE]));
}

static void print_json(const fsdp_trainer *t, const evaluated *e) {
  const fsdp_checkpoint *c = fsdp_resume_checkpoint(t->checkpoints.resume);
  json_t *root = json_object();
  if (c) json_object_set_new(root, "step", json_integer(c->progress.step));
  if (t->eval_dataset) {
    json_object_set_new(root, "loss", json_real(e->loss));
    json_object_set_new(root, "perplexity", json_real(fsdp_progress_perplexity(e->loss)));
    json_object_set_new(root, "samples", json_integer(t->eval_dataset->sample_count));
    json_object_set_new(root, t->feed.config.loss_of_documents ? "documents" : "targets",
                        json_integer(t->feed.eval_counted));
    json_object_set_new(root, "seconds", json_real(e->seconds));
  }
  if (e->text) {
    const fsdp_sample *sample = t->sample;
    json_object_set_new(root, "prompt_tokens", fsdp_text_list(sample->tokens, sample->prompt_count));
    json_object_set_new(root, "tokens",
                        fsdp_text_list(sample->tokens + sample->prompt_count, sample->new_count));
    if (!sample->as_tokens) json_object_set_new(root, "text", json_string(e->text));
    json_object_set_new(root, "sample_seconds", json_real(e->sample_seconds));
  }
  put_memory(t, e, root);
  json_dumpf(root, stdout, JSON_COMPACT);
  putchar('\n');
  json_decref(root);
}

static fsdp_status evaluate(fsdp_trainer *t, evaluated *e, fsdp_error *error) {
  if (!t->eval_dataset) return FSDP_OK;
  const int64_t began_ns = fsdp_now_ns();
  e->loss = fsdp_feed_evaluate(&t->feed, t->session.executor, t->world);
  e->seconds = (double)(fsdp_now_ns() - began_ns) / 1e9;
  fsdp_mapped_file_lost(error); // what was read since is zeros
  if (fsdp_world_share_error(t->world, error) != FSDP_OK) return error->status;
  if (isfinite(e->loss)) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_NOT_FINITE,
                   "the loss is %g: the weights have most likely diverged; evaluate an earlier checkpoint",
                   fabs(e->loss));
}

// Token by token, by the evaluation's own forward on any mesh: the logits of the last token, on all ranks, of
// which rank 0 chooses the next. No keys or values are kept: each token is one evaluation.
static fsdp_status sample_tokens(fsdp_trainer *t, fsdp_error *error) {
  fsdp_sample *s = t->sample;
  const fsdp_next_token_config choice = {
      .temperature = t->options->temperature, .top_p = t->options->top_p, .seed = (uint64_t)t->options->seed};
  const int64_t vocabulary = t->setup.plan->config.model.vocab_size;
  int64_t next[3] = {0}; // the token, whether the text ends, and how many tokens there are then
  float *logits = fsdp_alloc((size_t)vocabulary * sizeof *logits);
  s->new_count = 0;
  while (next[0] >= 0 && !next[1] && s->new_count < s->new_max) {
    const int64_t count = s->prompt_count + s->new_count;
    fsdp_feed_logits(&t->feed, t->session.executor, s->tokens, count, logits);
    if (fsdp_trainer_is_first(t)) {
      next[0] = fsdp_next_token(&choice, logits, vocabulary, count);
      if (next[0] >= 0) next[1] = fsdp_sample_add(s, t->codec, (int32_t)next[0]);
      next[2] = s->new_count;
    }
    fsdp_world_broadcast(t->world, next, (int64_t)sizeof next);
    s->new_count = next[2];
    if (s->prompt_count + s->new_count > count) s->tokens[count] = (int32_t)next[0];
  }
  free(logits);
  if (next[0] >= 0) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_NOT_FINITE,
                   "the logits behind %" PRId64
                   " tokens are not finite: the weights have most likely diverged; "
                   "use an earlier checkpoint",
                   s->prompt_count + s->new_count);
}

fsdp_status fsdp_train_sample(fsdp_trainer *t, char **text, fsdp_error *error) {
  *text = NULL;
  fsdp_status status = sample_tokens(t, error);
  if (status != FSDP_OK) return status;
  if (fsdp_trainer_is_first(t)) fsdp_sample_print(t->sample, t->codec, text, error);
  return fsdp_world_share_error(t->world, error);
}

static fsdp_status sample(fsdp_trainer *t, evaluated *e, fsdp_error *error) {
  if (t->sample->prompt_count == 0) return FSDP_OK;
  const int64_t began_ns = fsdp_now_ns();
  fsdp_status status = fsdp_train_sample(t, &e->text, error);
  e->sample_seconds = (double)(fsdp_now_ns() - began_ns) / 1e9;
  return status;
}

// What the newest run of the program accessed.
static void measure(fsdp_trainer *t, evaluated *e) {
  char message[512];
  const int64_t step = fsdp_executor_steps(t->session.executor);
  bool sound = fsdp_executor_step_stats(t->session.executor, step, &e->stats, message, sizeof message);
  FSDP_CHECK(sound, "evaluation %" PRId64 ": %s", step, message);
}

fsdp_status fsdp_train_eval_run(fsdp_trainer *t, fsdp_error *error) {
  evaluated e = {0};
  fsdp_board_enter(FSDP_ACTIVITY_EVALUATING);
  fsdp_status status = evaluate(t, &e, error);
  if (status == FSDP_OK) status = sample(t, &e, error);
  if (status == FSDP_OK) measure(t, &e);
  if (status == FSDP_OK && fsdp_trainer_is_first(t)) (t->options->json ? print_json : print_text)(t, &e);
  free(e.text);
  return status;
}
