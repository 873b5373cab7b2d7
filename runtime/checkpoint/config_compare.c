#include "runtime/checkpoint/config_compare.h"

#include "runtime/base/check.h"
#include "runtime/checkpoint/config_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Keys that change no number of a run that continues. Everything else does, also what is added to the
// configuration later.
static const char *const without_numbers[] = {
    "max_position_embeddings", // positions are computed, and sequences as long as --seq-length
    "initializer_range",       // new weights are drawn with it, trained ones are not
};

typedef struct listing {
  fsdp_config_scope scope;
  char *out;
  size_t bytes, used;
  bool differs;
} listing;

static bool is_left_out(const listing *l, const char *key) {
  for (size_t i = 0; i < sizeof without_numbers / sizeof *without_numbers; i++)
    if (l->scope == FSDP_CONFIG_NUMBERS && strcmp(key, without_numbers[i]) == 0) return true;
  return false;
}

static char *print(const json_t *value, int digits) {
  if (!value) return strdup("none");
  return json_dumps(value,
                    JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION((size_t)digits));
}

static void add(listing *l, const char *prefix, const char *key, const json_t *a, const json_t *b) {
  char *from = print(a, 15), *to = print(b, 15);
  FSDP_CHECK(from && to, "a configuration that cannot be printed");
  if (strcmp(from, to) == 0) { // they differ in the last digits
    free(from);
    free(to);
    from = print(a, 17);
    to = print(b, 17);
    FSDP_CHECK(from && to, "a configuration that cannot be printed");
  }
  if (l->used < l->bytes)
    l->used += (size_t)snprintf(l->out + l->used, l->bytes - l->used, "%s%s%s%s %s → %s",
                                l->differs ? ", " : "", prefix, *prefix ? "." : "", key, from, to);
  l->differs = true;
  free(from);
  free(to);
}

static void compare_objects(listing *l, const char *prefix, const json_t *a, const json_t *b) {
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)a, key, value) {
    const json_t *other = json_object_get(b, key);
    if (json_equal(value, other) || is_left_out(l, key)) continue;
    if (json_is_object(value) && json_is_object(other))
      compare_objects(l, key, value, other);
    else
      add(l, prefix, key, value, other);
  }
  json_object_foreach((json_t *)b, key, value) {
    if (!json_object_get(a, key) && !is_left_out(l, key)) add(l, prefix, key, NULL, value);
  }
}

bool fsdp_config_differs(const fsdp_llama_config *a, const fsdp_llama_config *b, fsdp_config_scope scope,
                         char *out, size_t out_bytes) {
  listing l = {.scope = scope, .out = out, .bytes = out_bytes};
  json_t *from = fsdp_config_json(a), *to = fsdp_config_json(b);
  if (out_bytes) *out = 0;
  compare_objects(&l, "", from, to);
  json_decref(from);
  json_decref(to);
  return l.differs;
}
