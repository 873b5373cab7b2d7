#include "launcher/setup/setup.h"

#include "runtime/base/paths.h"
#include "runtime/base/size.h"
#include "runtime/checkpoint/json_file.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/plan/text/value.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

// A preset's name, or a folder: what has a slash in it or is there.
static bool is_folder(const char *model) {
  struct stat status;
  return strchr(model, '/') || (!fsdp_model_is_preset(model) && stat(model, &status) == 0);
}

// "org/name", as the hub names models.
static bool is_hub_name(const char *model) {
  static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
  size_t first = strspn(model, allowed), second = first;
  if (model[first] == '/') second = strspn(model + first + 1, allowed);
  return first > 0 && second > 0 && model[first] == '/' && !model[first + 1 + second] && model[0] != '.' &&
         model[first + 1] != '.';
}

static fsdp_status fail_not_downloaded(const fsdp_options *options, fsdp_error *error) {
  const char *name = strchr(options->model, '/') + 1;
  return fsdp_refuse(options, error, FSDP_ERR_INPUT,
                     "{Q model}: no such folder, and models are not downloaded; if it is a model of the "
                     "Hugging Face hub, run: hf download %s --local-dir %s (or: huggingface-cli download %s "
                     "--local-dir %s), then give --model ./%s",
                     options->model, name, options->model, name, name);
}

// A preset of the name of a model's folder that is here: one of them would be taken unseen for the other.
static fsdp_status check_preset(const fsdp_options *options, fsdp_error *error) {
  if (!fsdp_model_is_preset(options->model) || !fsdp_has_file(options->model, "config.json")) return FSDP_OK;
  return fsdp_refuse(options, error, FSDP_ERR_OPTION,
                     "{A model}: is a preset, but also a model's folder here; write ./%s for the folder, or "
                     "rename it for the preset",
                     options->model);
}

static fsdp_status fail_adapter(const fsdp_options *options, fsdp_error *error) {
  return fsdp_refuse(options, error, FSDP_ERR_INPUT,
                     "{A model}: holds an adapter (adapter_config.json) and no model: merge it into its base "
                     "model (peft's merge_and_unload), and give what save_pretrained writes then");
}

// What a run has saved is no model's folder, though both are named where a run begins.
static fsdp_status fail_run(const fsdp_options *options, fsdp_error *error) {
  return fsdp_refuse(
      options, error, FSDP_ERR_INPUT,
      "{A model}: holds what fsdp_train saved and is no model's folder: run fsdp_export %.300s --to DIR and "
      "give --model DIR; to train on from it, or to evaluate it, use -e NAME --resume %.300s",
      options->model, options->model);
}

static const char *folder_name(const char *path) {
  const char *name = strrchr(path, '/');
  return name && name[1] ? name + 1 : path;
}

static fsdp_status read_model(const fsdp_options *options, fsdp_setup *setup, fsdp_model_config *model,
                              fsdp_error *error) {
  setup->model_name = options->model;
  if (!is_folder(options->model)) {
    fsdp_error why;
    fsdp_status status = check_preset(options, error);
    if (status == FSDP_OK && fsdp_model_preset(options->model, model, &why) != FSDP_OK)
      status = fsdp_refuse(options, error, why.status, "{Q model}: no such folder, and %s", why.message);
    return status;
  }
  struct stat information;
  if (is_hub_name(options->model) && stat(options->model, &information) != 0)
    return fail_not_downloaded(options, error);
  setup->folder = options->model;
  setup->model_name = folder_name(options->model);
  setup->load_weights = options->init == FSDP_INIT_WEIGHTS ||
                        (options->init == FSDP_INIT_AUTO && fsdp_safetensors_is_present(options->model));
  if (!fsdp_has_file(options->model, "config.json")) {
    if (fsdp_has_file(options->model, "adapter_config.json")) return fail_adapter(options, error);
    if (fsdp_has_file(options->model, "checkpoint.json") || fsdp_has_file(options->model, "run.yaml"))
      return fail_run(options, error);
  }
  char path[4096];
  if (snprintf(path, sizeof path, "%s/config.json", options->model) >= (int)sizeof path)
    return fsdp_fail(error, FSDP_ERR_INPUT, "--model: the path is too long");
  return fsdp_config_read(path, model, error);
}

// What options say of routers and what they route, over what the configuration says.
static fsdp_status apply_router(const fsdp_options *options, fsdp_model_config *model, fsdp_error *error) {
  static const char *const names[] = {"router-aux-coef",  "aux-loss",     "router-z-coef",
                                      "router-bias-rate", "router-dtype", "routing-record",
                                      "routing-replay",   "imbalance"};
  for (size_t i = 0; i < sizeof names / sizeof *names && !model->experts; i++)
    if (fsdp_options_given(options, names[i]))
      return fsdp_refuse(options, error, FSDP_ERR_OPTION,
                         "{a %s} is of models with routed experts, and this has none: leave it out",
                         names[i]);
  if (options->router_bias_rate > 0 && !model->route_bias)
    return fsdp_refuse(options, error, FSDP_ERR_OPTION,
                       "{A router-bias-rate}: the routers of this model have no correction bias to move: use "
                       "--router-aux-coef");
  if (fsdp_options_given(options, "router-aux-coef")) model->router_aux_coef = options->router_aux_coef;
  if (fsdp_options_given(options, "router-z-coef")) model->router_z_coef = options->router_z_coef;
  if (fsdp_options_given(options, "aux-loss")) model->router_aux = (fsdp_router_aux)options->aux_loss;
  if (fsdp_options_given(options, "aux-loss") && model->router_aux_coef <= 0)
    return fsdp_refuse(
        options, error, FSDP_ERR_OPTION,
        "{a aux-loss} is of a loss that counts 0 here: add --router-aux-coef X, or leave it out");
  model->replays_routes = options->routing_replay != NULL;
  if (options->router_dtype == FSDP_ROUTER_DTYPE_F32) model->router_f32 = true;
  return FSDP_OK;
}

// ---- Its vocabulary

// One more than the greatest token of a tokenizer.json: its model's vocabulary is an object of ids by token,
// or (Unigram) a list; tokens that were added have their ids.
static int64_t tokenizer_size(const json_t *root) {
  const json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab"), *token;
  int64_t size = json_is_array(vocab) ? (int64_t)json_array_size(vocab) : 0;
  const char *name;
  size_t i;
  json_object_foreach((json_t *)vocab, name, token) size = fsdp_max_i64(size, json_integer_value(token) + 1);
  json_array_foreach(json_object_get(root, "added_tokens"), i, token) size =
      fsdp_max_i64(size, json_integer_value(json_object_get(token, "id")) + 1);
  return size;
}

static fsdp_status read_tokenizer(const fsdp_options *options, const char *folder, int64_t *size,
                                  fsdp_error *error) {
  const bool named = options->tokenizer && strcmp(options->tokenizer, "bytes") != 0;
  char path[4096];
  if (!named && (!folder || options->tokenizer))
    return fsdp_refuse(options, error, FSDP_ERR_OPTION,
                       "{a resize-embeddings}: there is no tokenizer whose tokens could be counted: give "
                       "their number, as in --resize-embeddings 32001, or --tokenizer FILE");
  snprintf(path, sizeof path, "%.4000s%s", named ? options->tokenizer : folder,
           named ? "" : "/tokenizer.json");
  const fsdp_json_file file = {.path = path,
                               .missing = "--resize-embeddings N gives the number of tokens itself",
                               .damaged = "--resize-embeddings N gives the number of tokens itself"};
  json_t *root;
  fsdp_status status = fsdp_json_file_read(&file, &root, error);
  if (status) return status;
  *size = tokenizer_size(root);
  json_decref(root);
  if (*size > 0 && *size <= INT32_MAX) return FSDP_OK;
  return fsdp_fail(
      error, FSDP_ERR_INPUT,
      "%s: its tokens cannot be counted (no model.vocab): give their number with --resize-embeddings N",
      path);
}

// Gives `model`, read from `folder` (NULL: a preset), as many tokens as --resize-embeddings says. Into
// *stored_vocab what it had, 0 if nothing changed.
static fsdp_status resize_embeddings(const fsdp_options *options, const char *folder,
                                     fsdp_model_config *model, int64_t *stored_vocab, fsdp_error *error) {
  const char *text = options->resize_embeddings;
  int64_t size = 0;
  *stored_vocab = 0;
  if (!text) return FSDP_OK;
  if (strcmp(text, "tokenizer") == 0) {
    fsdp_status status = read_tokenizer(options, folder, &size, error);
    if (status || size <= model->vocab_size) return status;
  } else if (!fsdp_value_int(text, &size) || size < 1 || size > INT32_MAX) {
    return fsdp_refuse(options, error, FSDP_ERR_OPTION,
                       "{Q resize-embeddings}: use tokenizer, or a number of tokens");
  } else if (size < model->vocab_size) {
    return fsdp_refuse(
        options, error, FSDP_ERR_OPTION,
        "{A resize-embeddings}: the model has %lld tokens, and none is taken from it: use at least that",
        (long long)model->vocab_size);
  }
  if (size > model->vocab_size) *stored_vocab = model->vocab_size;
  model->vocab_size = size;
  return FSDP_OK;
}

fsdp_status fsdp_setup_read_model(const fsdp_options *options, fsdp_setup *setup, fsdp_model_config *model,
                                  fsdp_error *error) {
  fsdp_status status = read_model(options, setup, model, error);
  if (options->evaluated) setup->model_name = options->evaluated;
  if (!status) status = apply_router(options, model, error);
  return status ? status : resize_embeddings(options, setup->folder, model, &setup->stored_vocab, error);
}
