#include "models/fields.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The value as it stands in the object, shortened, for a message; in the caller's buffer.
static const char *shown(const json_t *value, char buffer[80]) {
  char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
  snprintf(buffer, 80, "%.70s%s", text ? text : "?", text && strlen(text) > 70 ? "..." : "");
  free(text);
  return buffer;
}

const json_t *fsdp_fields_present(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  return json_is_null(value) ? NULL : value;
}

bool fsdp_fields_is_text(const json_t *value, const char *text) {
  return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

void fsdp_fields_refuse(fsdp_fields *f, const char *key, const json_t *value, const char *remedy) {
  char buffer[80];
  if (f->status) return;
  f->status = fsdp_fail(f->error, FSDP_ERR_INPUT, "%s: \"%s\" is %s, %s", f->where, key, shown(value, buffer),
                        remedy);
}

void fsdp_fields_refuse_missing(fsdp_fields *f, const char *key) {
  if (f->status) return;
  f->status = fsdp_fail(
      f->error, FSDP_ERR_INPUT,
      "%s: the field \"%s\" is missing; a config.json of this kind%s%s%s has it, so add it or "
      "take the file that belongs to the weights",
      f->where, key, f->model_type ? " (" : "", f->model_type ? f->model_type : "", f->model_type ? ")" : "");
}

int64_t fsdp_fields_count(fsdp_fields *f, const json_t *object, const char *key, int64_t fallback,
                          int64_t most) {
  const json_t *value = fsdp_fields_present(object, key);
  if (!value) {
    if (!fallback) fsdp_fields_refuse_missing(f, key);
    return fallback;
  }
  json_int_t number = json_integer_value(value);
  if (json_is_integer(value) && number >= 1 && number <= most) return number;
  char remedy[96];
  snprintf(remedy, sizeof remedy, "but must be a whole number of at least 1");
  if (json_is_integer(value) && number > most)
    snprintf(remedy, sizeof remedy, "but must be between 1 and %lld", (long long)most);
  fsdp_fields_refuse(f, key, value, remedy);
  return 1;
}

int64_t fsdp_fields_count_or_none(fsdp_fields *f, const json_t *object, const char *key, int64_t fallback,
                                  int64_t most) {
  const json_t *value = json_object_get(object, key);
  if (!value) return fallback;
  return json_is_null(value) ? 0 : fsdp_fields_count(f, object, key, fallback, most);
}

int64_t fsdp_fields_whole(fsdp_fields *f, const json_t *object, const char *key, int64_t fallback,
                          int64_t most) {
  const json_t *value = fsdp_fields_present(object, key);
  if (!value) return fallback;
  json_int_t number = json_integer_value(value);
  if (json_is_integer(value) && number >= 0 && number <= most) return number;
  char remedy[96];
  snprintf(remedy, sizeof remedy, "but must be a whole number from 0 to %lld", (long long)most);
  fsdp_fields_refuse(f, key, value, remedy);
  return fallback;
}

static bool is_positive(const json_t *value) {
  return json_is_number(value) && isfinite(json_number_value(value)) && json_number_value(value) > 0;
}

double fsdp_fields_positive(fsdp_fields *f, const json_t *object, const char *key, double fallback) {
  const json_t *value = fsdp_fields_present(object, key);
  if (!value) {
    if (fallback == 0) fsdp_fields_refuse_missing(f, key);
    return fallback;
  }
  if (is_positive(value)) return json_number_value(value);
  fsdp_fields_refuse(f, key, value, "but must be a number above 0");
  return 1;
}

double fsdp_fields_fraction(fsdp_fields *f, const json_t *object, const char *key, double fallback) {
  const json_t *value = fsdp_fields_present(object, key);
  if (!value) return fallback;
  if (is_positive(value) && json_number_value(value) < 1) return json_number_value(value);
  fsdp_fields_refuse(f, key, value, "but must be a number above 0 and below 1");
  return fallback;
}

// A number in [0, 1]. If the key is absent, `fallback`.
static double probability(fsdp_fields *f, const json_t *object, const char *key, double fallback) {
  const json_t *value = fsdp_fields_present(object, key);
  if (!value) return fallback;
  double number = json_number_value(value);
  if (json_is_number(value) && number >= 0 && number <= 1) return number;
  fsdp_fields_refuse(f, key, value, "but must be a number from 0 to 1");
  return fallback;
}

bool fsdp_fields_bool(fsdp_fields *f, const json_t *object, const char *key, bool fallback) {
  const json_t *value = fsdp_fields_present(object, key);
  if (!value) return fallback;
  if (!json_is_boolean(value)) fsdp_fields_refuse(f, key, value, "but must be true or false");
  return json_is_true(value);
}

void fsdp_fields_only_text(fsdp_fields *f, const json_t *object, const char *key, const char *text) {
  const json_t *value = fsdp_fields_present(object, key);
  char remedy[128];
  snprintf(remedy, sizeof remedy, "but only \"%s\" is supported; use a model that has it", text);
  if (value && !fsdp_fields_is_text(value, text)) fsdp_fields_refuse(f, key, value, remedy);
}

void fsdp_fields_only_bool(fsdp_fields *f, const json_t *object, const char *key, bool only,
                           const char *what) {
  char remedy[128];
  snprintf(remedy, sizeof remedy, "but %s are not supported; use a model without them", what);
  if (fsdp_fields_bool(f, object, key, only) != only) fsdp_fields_refuse(f, key, json_boolean(!only), remedy);
}

void fsdp_fields_heads(fsdp_fields *f, const json_t *object, int64_t kv_heads, int64_t head_dim,
                       fsdp_model_config *config) {
  enum { HEADS_MAX = 1 << 16, HEAD_DIM_MAX = FSDP_FIELDS_HEAD_DIM_MAX };
  config->num_heads = fsdp_fields_count(f, object, "num_attention_heads", 0, HEADS_MAX);
  bool is_null = json_is_null(json_object_get(object, "num_key_value_heads"));
  if (!kv_heads || is_null) kv_heads = f->status ? 1 : config->num_heads;
  config->num_kv_heads = fsdp_fields_count(f, object, "num_key_value_heads", kv_heads, HEADS_MAX);
  config->head_dim = fsdp_fields_count(f, object, "head_dim", head_dim ? head_dim : -1, HEAD_DIM_MAX);
  if (config->head_dim > 0 || f->status) return;
  config->head_dim = config->hidden_size / config->num_heads;
  if (config->hidden_size % config->num_heads)
    f->status =
        fsdp_fail(f->error, FSDP_ERR_INPUT,
                  "%s: \"hidden_size\" is %lld, which \"num_attention_heads\" = %lld does not divide; "
                  "correct them, or give \"head_dim\"",
                  f->where, (long long)config->hidden_size, (long long)config->num_heads);
  else if (config->head_dim > HEAD_DIM_MAX)
    f->status = fsdp_fail(f->error, FSDP_ERR_INPUT,
                          "%s: \"hidden_size\" %lld over \"num_attention_heads\" %lld gives heads of %lld "
                          "elements, but they may have at most %d; correct them",
                          f->where, (long long)config->hidden_size, (long long)config->num_heads,
                          (long long)config->head_dim, HEAD_DIM_MAX);
}

// ---- Tables

void fsdp_fields_read(fsdp_fields *f, const json_t *object, const fsdp_field *rows,
                      fsdp_model_config *config) {
  for (const fsdp_field *row = rows; row && row->key; row++) {
    void *member = (char *)config + row->offset;
    const int64_t fallback = (int64_t)row->fallback;
    switch (row->kind) {
    case FSDP_FIELD_FALSE:
      fsdp_fields_only_bool(f, object, row->key, false, row->what);
      break;
    case FSDP_FIELD_BOOL:
      *(bool *)member = fsdp_fields_bool(f, object, row->key, fallback);
      break;
    case FSDP_FIELD_COUNT:
      *(int64_t *)member = fsdp_fields_count(f, object, row->key, fallback, row->most);
      break;
    case FSDP_FIELD_COUNT_OR_NONE:
      *(int64_t *)member = fsdp_fields_count_or_none(f, object, row->key, fallback, row->most);
      break;
    case FSDP_FIELD_WHOLE:
      *(int64_t *)member = fsdp_fields_whole(f, object, row->key, fallback, row->most);
      break;
    case FSDP_FIELD_POSITIVE:
      *(double *)member = fsdp_fields_positive(f, object, row->key, row->fallback);
      break;
    case FSDP_FIELD_PROBABILITY:
      *(double *)member = probability(f, object, row->key, row->fallback);
      break;
    }
  }
}

static json_t *print_field(const fsdp_field *row, const void *member) {
  switch (row->kind) {
  case FSDP_FIELD_FALSE:
    return json_false();
  case FSDP_FIELD_BOOL:
    return json_boolean(*(const bool *)member);
  case FSDP_FIELD_POSITIVE:
  case FSDP_FIELD_PROBABILITY:
    return json_real(*(const double *)member);
  default:
    if (row->kind == FSDP_FIELD_COUNT_OR_NONE && !*(const int64_t *)member) return json_null();
    return json_integer(*(const int64_t *)member);
  }
}

void fsdp_fields_print(const fsdp_field *rows, const fsdp_model_config *config, json_t *object) {
  for (const fsdp_field *row = rows; row && row->key; row++)
    json_object_set_new(object, row->key, print_field(row, (const char *)config + row->offset));
}
