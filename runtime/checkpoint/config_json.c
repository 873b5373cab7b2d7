#include "runtime/checkpoint/config_json.h"

#include "runtime/base/check.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

// Once `status` is bad every further call does nothing, so that a reader is a plain list of fields.
typedef struct reader {
  const char *path;
  fsdp_status status;
  fsdp_error *error;
} reader;

// The value as it stands in the file, shortened, for a message; in the caller's buffer.
static const char *shown(const json_t *value, char buffer[80]) {
  char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
  snprintf(buffer, 80, "%.70s%s", text ? text : "?", text && strlen(text) > 70 ? "..." : "");
  free(text);
  return buffer;
}

static const json_t *present(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  return json_is_null(value) ? NULL : value;
}

static void fail_value(reader *r, const char *key, const json_t *value, const char *remedy) {
  char buffer[80];
  if (r->status) return;
  r->status =
      fsdp_fail(r->error, FSDP_ERR_INPUT, "%s: \"%s\" is %s, %s", r->path, key, shown(value, buffer), remedy);
}

static void fail_missing(reader *r, const char *key) {
  if (r->status) return;
  r->status =
      fsdp_fail(r->error, FSDP_ERR_INPUT,
                "%s: the field \"%s\" is missing; a Llama config.json has it, so add it or take the file "
                "that belongs to the weights",
                r->path, key);
}

// A whole number in [1, 2^62]; `fallback` where the key is absent, or a failure where that is 0.
static int64_t read_count(reader *r, const json_t *object, const char *key, int64_t fallback) {
  const json_t *value = present(object, key);
  if (!value) {
    if (!fallback) fail_missing(r, key);
    return fallback;
  }
  if (!json_is_integer(value) || json_integer_value(value) < 1 ||
      json_integer_value(value) > ((json_int_t)1 << 62)) {
    fail_value(r, key, value, "but must be a whole number of at least 1");
    return 1;
  }
  return json_integer_value(value);
}

// A finite number above 0; `fallback` where the key is absent, or a failure where that is 0.
static double read_positive(reader *r, const json_t *object, const char *key, double fallback) {
  const json_t *value = present(object, key);
  if (!value) {
    if (fallback == 0) fail_missing(r, key);
    return fallback;
  }
  if (!json_is_number(value) || !isfinite(json_number_value(value)) || json_number_value(value) <= 0) {
    fail_value(r, key, value, "but must be a number above 0");
    return 1;
  }
  return json_number_value(value);
}

static bool read_bool(reader *r, const json_t *object, const char *key, bool fallback) {
  const json_t *value = present(object, key);
  if (!value) return fallback;
  if (!json_is_boolean(value)) fail_value(r, key, value, "but must be true or false");
  return json_is_true(value);
}

static bool is_text(const json_t *value, const char *text) {
  return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

// What makes the file another model than the one that is built.
static void refuse_other_models(reader *r, const json_t *root) {
  const json_t *type = present(root, "model_type"), *architectures = present(root, "architectures");
  if (type && !is_text(type, "llama"))
    fail_value(r, "model_type", type,
               "but only \"llama\" models can be trained; take a Llama model's folder");
  if (architectures) {
    bool found = false;
    for (size_t i = 0; i < json_array_size(architectures); i++)
      found |= is_text(json_array_get(architectures, i), "LlamaForCausalLM");
    if (!found)
      fail_value(r, "architectures", architectures,
                 "but only [\"LlamaForCausalLM\"] can be trained; take a Llama model's folder");
  } else if (!type) {
    fail_missing(r, "model_type");
  }
  if (read_bool(r, root, "attention_bias", false))
    fail_value(r, "attention_bias", json_true(), "but biases are not built; take a model without them");
  if (read_bool(r, root, "mlp_bias", false))
    fail_value(r, "mlp_bias", json_true(), "but biases are not built; take a model without them");
  const json_t *activation = present(root, "hidden_act"), *quantised = present(root, "quantization_config");
  if (activation && !is_text(activation, "silu"))
    fail_value(r, "hidden_act", activation, "but only \"silu\" is built; take a model with that activation");
  if (quantised)
    fail_value(r, "quantization_config", quantised,
               "but quantised weights cannot be trained; take the original ones");
  const json_t *dropout = present(root, "attention_dropout");
  if (dropout && (!json_is_number(dropout) || json_number_value(dropout) != 0))
    fail_value(r, "attention_dropout", dropout, "but dropout is not built; set it to 0.0");
}

static void read_rope_kind(reader *r, const json_t *rope, fsdp_llama_config *config) {
  const json_t *kind = present(rope, "rope_type");
  if (!kind) kind = present(rope, "type");
  config->rope_scaling = FSDP_ROPE_DEFAULT;
  if (!kind || is_text(kind, "default")) return;
  if (is_text(kind, "linear")) {
    config->rope_scaling = FSDP_ROPE_LINEAR;
    config->rope_factor = read_positive(r, rope, "factor", 0);
  } else if (is_text(kind, "llama3")) {
    config->rope_scaling = FSDP_ROPE_LLAMA3;
    config->rope_factor = read_positive(r, rope, "factor", 0);
    config->rope_low_freq_factor = read_positive(r, rope, "low_freq_factor", 0);
    config->rope_high_freq_factor = read_positive(r, rope, "high_freq_factor", 0);
    if (!r->status && config->rope_high_freq_factor <= config->rope_low_freq_factor)
      fail_value(r, "high_freq_factor", present(rope, "high_freq_factor"),
                 "but must be above \"low_freq_factor\"");
  } else {
    fail_value(r, "rope_type", kind,
               "but only \"default\", \"linear\" and \"llama3\" are built; take a model with one of these");
  }
}

// `rope` is rope_scaling or rope_parameters, or null in the oldest files.
static void read_rope(reader *r, const json_t *root, fsdp_llama_config *config) {
  const char *key = "rope_scaling";
  const json_t *rope = present(root, key);
  if (!rope || (json_is_object(rope) && json_object_size(rope) == 0))
    rope = present(root, key = "rope_parameters");
  if (rope && !json_is_object(rope)) {
    fail_value(r, key, rope, "but must be an object with \"rope_type\" (or null)");
    return;
  }
  const json_t *places[2] = {rope, root};
  for (int i = 0; i < 2; i++) {
    const json_t *partial = places[i] ? present(places[i], "partial_rotary_factor") : NULL;
    if (partial && (!json_is_number(partial) || json_number_value(partial) != 1))
      fail_value(r, "partial_rotary_factor", partial, "but only whole heads are rotated; it must be 1.0");
  }
  // The innermost one counts; 10000 is what Transformers takes for files older than the key.
  double outer = read_positive(r, root, "rope_theta", 10000.0);
  config->rope_theta = rope ? read_positive(r, rope, "rope_theta", outer) : outer;
  if (!rope) return;
  read_rope_kind(r, rope, config);
  if (config->rope_scaling == FSDP_ROPE_LLAMA3) {
    // Here the outermost one counts, as in Transformers.
    int64_t inner = read_count(r, rope, "original_max_position_embeddings", config->max_position_embeddings);
    config->rope_original_max_position = read_count(r, root, "original_max_position_embeddings", inner);
  }
}

// Sizes that Transformers has no sensible default for must be there; the rest take LlamaConfig's defaults.
static void read_fields(reader *r, const json_t *root, fsdp_llama_config *config) {
  config->vocab_size = read_count(r, root, "vocab_size", 0);
  config->hidden_size = read_count(r, root, "hidden_size", 0);
  config->intermediate_size = read_count(r, root, "intermediate_size", 0);
  config->num_layers = read_count(r, root, "num_hidden_layers", 0);
  config->num_heads = read_count(r, root, "num_attention_heads", 0);
  if (r->status || config->num_heads < 1) return;
  config->num_kv_heads = read_count(r, root, "num_key_value_heads", config->num_heads);
  config->head_dim = read_count(r, root, "head_dim", -1);
  config->max_position_embeddings = read_count(r, root, "max_position_embeddings", 2048);
  config->rms_norm_eps = read_positive(r, root, "rms_norm_eps", 1e-6);
  config->initializer_range = read_positive(r, root, "initializer_range", 0.02);
  config->tie_word_embeddings = read_bool(r, root, "tie_word_embeddings", false);
  if (config->head_dim > 0 || r->status) return;
  if (config->hidden_size % config->num_heads)
    r->status =
        fsdp_fail(r->error, FSDP_ERR_INPUT,
                  "%s: \"hidden_size\" is %lld, which \"num_attention_heads\" = %lld does not divide; "
                  "correct them, or give \"head_dim\"",
                  r->path, (long long)config->hidden_size, (long long)config->num_heads);
  config->head_dim = config->hidden_size / config->num_heads;
}

static json_t *load(reader *r) {
  FILE *file = fopen(r->path, "rb");
  json_error_t place;
  json_t *root = NULL;
  if (!file) {
    r->status =
        fsdp_fail(r->error, FSDP_ERR_INPUT,
                  "%s: cannot be opened (%s); --model takes a preset's name or a folder with config.json",
                  r->path, strerror(errno));
    return NULL;
  }
  root = json_loadf(file, JSON_REJECT_DUPLICATES, &place);
  fclose(file);
  if (!root)
    r->status =
        fsdp_fail(r->error, FSDP_ERR_INPUT, "%s:%d:%d: not valid JSON: %s; correct it there or copy it again",
                  r->path, place.line, place.column, place.text);
  else if (!json_is_object(root))
    r->status =
        fsdp_fail(r->error, FSDP_ERR_INPUT, "%s: not a JSON object; a model's config.json is one", r->path);
  return root;
}

// Everything behind the reading of the file.
static fsdp_status parse(reader *r, const json_t *root, fsdp_llama_config *config) {
  memset(config, 0, sizeof *config);
  if (!r->status) refuse_other_models(r, root);
  if (!r->status) read_fields(r, root, config);
  if (!r->status) read_rope(r, root, config);
  return r->status ? r->status : fsdp_llama_check(config, r->path, r->error);
}

fsdp_status fsdp_config_read(const char *path, fsdp_llama_config *config, fsdp_error *error) {
  FSDP_CHECK(path && config, "no path or no place for the configuration");
  reader r = {.path = path, .error = error};
  json_t *root = load(&r);
  fsdp_status status = parse(&r, root, config);
  json_decref(root);
  return status;
}

fsdp_status fsdp_config_parse(const json_t *root, const char *where, fsdp_llama_config *config,
                              fsdp_error *error) {
  reader r = {.path = where, .error = error};
  return parse(&r, root, config);
}

// ---- Writing

static json_t *rope_json(const fsdp_llama_config *config) {
  if (config->rope_scaling == FSDP_ROPE_DEFAULT) return json_null();
  if (config->rope_scaling == FSDP_ROPE_LINEAR) {
    return json_pack("{s:s, s:f}", "rope_type", "linear", "factor", config->rope_factor);
  }
  return json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor", config->rope_factor,
                   "low_freq_factor", config->rope_low_freq_factor, "high_freq_factor",
                   config->rope_high_freq_factor, "original_max_position_embeddings",
                   (json_int_t)config->rope_original_max_position);
}

json_t *fsdp_config_json(const fsdp_llama_config *config) {
  json_t *root = json_pack(
      "{s:[s], s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:o, s:f, s:b, s:b, s:b}",
      "architectures", "LlamaForCausalLM", "model_type", "llama", "hidden_act", "silu", "vocab_size",
      (json_int_t)config->vocab_size, "hidden_size", (json_int_t)config->hidden_size, "intermediate_size",
      (json_int_t)config->intermediate_size, "num_hidden_layers", (json_int_t)config->num_layers,
      "num_attention_heads", (json_int_t)config->num_heads, "num_key_value_heads",
      (json_int_t)config->num_kv_heads, "head_dim", (json_int_t)config->head_dim, "max_position_embeddings",
      (json_int_t)config->max_position_embeddings, "rms_norm_eps", config->rms_norm_eps, "rope_theta",
      config->rope_theta, "rope_scaling", rope_json(config), "initializer_range", config->initializer_range,
      "tie_word_embeddings", config->tie_word_embeddings, "attention_bias", 0, "mlp_bias", 0);
  FSDP_CHECK(root, "a configuration that is no JSON");
  return root;
}
