// What every rank must have found before the first step: options, model, profile, files.
//
// Each comparison is made at a place that every rank reaches, whatever it found: what went wrong on a rank
// alone is shared before anything is compared, and whatever decides how a rank continues is compared before
// it does.
#include "launcher/train/file_agreement.h"
#include "launcher/train/train.h"
#include "launcher/train/trainer.h"
#include "models/model.h"
#include "runtime/base/check.h"
#include "runtime/base/text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// A comparison of files that takes longer is reported.
#define REPORTED_S 5

fsdp_status fsdp_train_agree_on_options(fsdp_world *world, const fsdp_options *options, fsdp_error *error) {
  char *mine = fsdp_options_describe(options), here[128], there[128];
  error->status = FSDP_OK;
  if (!fsdp_lines_agree(world, mine, here, there, sizeof here))
    fsdp_fail(error, FSDP_ERR_OPTION,
              "%s was started with --%s but %s with --%s: start every rank with the same options",
              fsdp_world_rank_name(world, world->rank).text, here, fsdp_world_rank_name(world, 0).text,
              there);
  free(mine);
  return fsdp_world_share_error(world, error);
}

// The configuration as text, every digit of its numbers; the caller frees it.
static char *print_model(const fsdp_model_config *model) {
  json_t *root = fsdp_model_print(model);
  char *text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17));
  FSDP_CHECK(text, "a configuration that cannot be printed");
  json_decref(root);
  return text;
}

// How the first rank's configuration, printed, differs from this rank's.
static void name_difference(const char *first, const fsdp_model_config *mine, char *what, size_t what_bytes) {
  fsdp_model_config config;
  fsdp_error error;
  json_t *root = json_loads(first, 0, NULL);
  FSDP_CHECK(fsdp_model_read(root, "the first rank's configuration", &config, &error) == FSDP_OK, "%s",
             error.message);
  json_decref(root);
  fsdp_model_differs(&config, mine, FSDP_MODEL_ALL, what, what_bytes);
}

fsdp_status fsdp_train_agree_on_model(fsdp_trainer *t, fsdp_error *error) {
  fsdp_world *world = t->world;
  const fsdp_options *options = t->options;
  fsdp_setup setup = {0};
  fsdp_model_config mine;
  fsdp_setup_read_model(options, &setup, &mine, error);
  if (fsdp_world_share_error(world, error) != FSDP_OK) return error->status;
  char *text = print_model(&mine), *first = fsdp_world_broadcast_text(world, text);
  if (strcmp(text, first) != 0) {
    char what[512];
    name_difference(first, &mine, what, sizeof what);
    fsdp_fail(error, FSDP_ERR_INPUT,
              "%.300s%s: the ranks' configurations differ (%s → %s): %s; every rank must read the same file",
              options->model, setup.folder ? "/config.json" : "", fsdp_world_rank_name(world, 0).text,
              fsdp_world_rank_name(world, world->rank).text, what);
  }
  free(text);
  free(first);
  return fsdp_world_share_error(world, error);
}

fsdp_status fsdp_train_agree_on_profile(fsdp_trainer *t, fsdp_error *error) {
  fsdp_world *world = t->world;
  char *mine, here[128], there[128];
  if (!t->options->profile) return FSDP_OK; // on every rank: options are compared
  fsdp_setup_print_profile(t->options, &mine, error);
  if (fsdp_world_share_error(world, error) != FSDP_OK) {
    free(mine);
    return error->status;
  }
  if (!fsdp_lines_agree(world, mine, here, there, sizeof here))
    fsdp_fail(
        error, FSDP_ERR_INPUT,
        "--profile %.300s: the ranks' profiles differ: %s has \"%s\", but %s \"%s\"; every rank must read "
        "the same file",
        t->options->profile, fsdp_world_rank_name(world, 0).text, there,
        fsdp_world_rank_name(world, world->rank).text, here);
  free(mine);
  return fsdp_world_share_error(world, error);
}

static void list_weights(const fsdp_trainer *t, fsdp_file_list *list) {
  const fsdp_safetensors *files = fsdp_weights_files(t->weights);
  if (files->index) fsdp_file_list_add(list, "weights index", files->index);
  for (int i = 0; i < files->file_count; i++) fsdp_file_list_add(list, "weights", files->files[i].path);
}

fsdp_status fsdp_train_agree_on_files(fsdp_trainer *t, fsdp_error *error) {
  const fsdp_options *o = t->options;
  fsdp_file_list list = {0};
  fsdp_file_agreement cost;
  if (*t->tokenizer.path) fsdp_file_list_add(&list, "tokenizer", t->tokenizer.path);
  for (int i = 0; i < t->data_paths.count; i++) fsdp_file_list_add(&list, "data", t->data_paths.files[i]);
  for (int i = 0; i < t->eval_paths.count; i++)
    fsdp_file_list_add(&list, "evaluation data", t->eval_paths.files[i]);
  // A checkpoint's files have their checksums in its manifest, which rank 0 hands out.
  if (t->weights && !fsdp_train_checkpoints_found(&t->checkpoints)) list_weights(t, &list);
  const fsdp_file_comparison comparison = {
      .list = &list, .world = t->world, .sizes_only = o->dry_run || o->compare_files == FSDP_COMPARE_SIZES};
  fsdp_status status = fsdp_file_list_agree(&comparison, &cost, error);
  fsdp_file_list_destroy(&list);
  if (status == FSDP_OK && fsdp_trainer_is_first(t) && cost.seconds > REPORTED_S) {
    printf("files:     %s compared between nodes in %.0f s\n", fsdp_print_bytes(cost.bytes).text,
           cost.seconds);
  }
  return status;
}

fsdp_status fsdp_train_agree_on_schedule(fsdp_trainer *t, fsdp_error *error) {
  if (!t->dataset) return FSDP_OK; // of a dry run, on every rank
  const int64_t counts[] = {t->dataset->token_count, t->dataset->sample_count,
                            t->feed.config.eval_sampler.held_out, t->steps_per_epoch, t->total_steps};
  return fsdp_world_agree(t->world, "the number of samples or steps", XXH64(counts, sizeof counts, 0), error);
}
