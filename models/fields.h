// The fields of a configuration's JSON object, read one by one. Only the first bad one is reported, so a
// reader is a plain list of fields. Messages name `where`, the key, its value and a remedy.
#pragma once

#include "models/model_config.h"
#include "runtime/base/status.h"

#include <jansson.h>
#include <stddef.h>

typedef struct fsdp_fields {
  const char *where; // what the object is called: a path
  const char *model_type;
  fsdp_status status; // FSDP_ERR_INPUT once a field is refused
  fsdp_error *error;
} fsdp_fields;

// The key's value, NULL if it is absent or null.
const json_t *fsdp_fields_present(const json_t *object, const char *key);

// Whether the value is this string; NULL is not.
bool fsdp_fields_is_text(const json_t *value, const char *text);

// Refuses a value: "WHERE: "key" is VALUE, REMEDY".
void fsdp_fields_refuse(fsdp_fields *fields, const char *key, const json_t *value, const char *remedy);

// Refuses an object that lacks the key.
void fsdp_fields_refuse_missing(fsdp_fields *fields, const char *key);

// A whole number in [1, most]. If the key is absent, `fallback`, or a refusal if that is 0.
int64_t fsdp_fields_count(fsdp_fields *fields, const json_t *object, const char *key, int64_t fallback,
                          int64_t most);

// The same, but null is 0: there is none. If the key is absent, `fallback`.
int64_t fsdp_fields_count_or_none(fsdp_fields *fields, const json_t *object, const char *key,
                                  int64_t fallback, int64_t most);

// A whole number in [0, most]. If the key is absent, `fallback`.
int64_t fsdp_fields_whole(fsdp_fields *fields, const json_t *object, const char *key, int64_t fallback,
                          int64_t most);

// A finite number above 0. If the key is absent, `fallback`, or a refusal if that is 0.
double fsdp_fields_positive(fsdp_fields *fields, const json_t *object, const char *key, double fallback);

// A number above 0 and below 1. If the key is absent, `fallback`.
double fsdp_fields_fraction(fsdp_fields *fields, const json_t *object, const char *key, double fallback);

// true or false. If the key is absent, `fallback`.
bool fsdp_fields_bool(fsdp_fields *fields, const json_t *object, const char *key, bool fallback);

// Refuses a key that is present and neither this string nor null.
void fsdp_fields_only_text(fsdp_fields *fields, const json_t *object, const char *key, const char *text);

// Refuses a key that is present and not as given; `what` ("biases") are not supported.
void fsdp_fields_only_bool(fsdp_fields *fields, const json_t *object, const char *key, bool only,
                           const char *what);

// ---- A table of keys, each read into a member of the configuration and printed from there

typedef enum fsdp_field_kind {
  FSDP_FIELD_FALSE, // must be false: only_bool
  FSDP_FIELD_BOOL,
  FSDP_FIELD_COUNT,
  FSDP_FIELD_COUNT_OR_NONE,
  FSDP_FIELD_WHOLE,
  FSDP_FIELD_POSITIVE,
  FSDP_FIELD_PROBABILITY
} fsdp_field_kind;

typedef struct fsdp_field {
  const char *key;
  fsdp_field_kind kind;
  size_t offset; // of the member: a bool, a double from POSITIVE on, else an int64_t
  double fallback;
  int64_t most;
  const char *what; // of FALSE
} fsdp_field;

#define FSDP_FIELD(key, kind, member, fallback, most)                                                        \
  { key, FSDP_FIELD_##kind, offsetof(fsdp_model_config, member), fallback, most, NULL }
#define FSDP_FIELD_MUST_BE_FALSE(key, what)                                                                  \
  { key, FSDP_FIELD_FALSE, 0, 0, 0, what }

// The rows of a table, which ends with one without a key, in their order. NULL: none.
void fsdp_fields_read(fsdp_fields *fields, const json_t *object, const fsdp_field *rows,
                      fsdp_model_config *config);
void fsdp_fields_print(const fsdp_field *rows, const fsdp_model_config *config, json_t *object);

#define FSDP_FIELDS_HEAD_DIM_MAX 1024

// Fills num_heads, num_kv_heads and head_dim from num_attention_heads, num_key_value_heads and head_dim. An
// absent num_key_value_heads is `kv_heads`; if that is 0, or the key is null, num_heads. An absent head_dim
// is `head_dim`; if that is 0, hidden_size (read before) over num_heads.
void fsdp_fields_heads(fsdp_fields *fields, const json_t *object, int64_t kv_heads, int64_t head_dim,
                       fsdp_model_config *config);
