// How two configurations differ, key by key of what is printed of them.
#include "models/family.h"
#include "models/model.h"

#include "runtime/base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct listing {
  const char *const *left_out; // keys; ends with NULL
  char *out;
  size_t bytes, used;
  bool differs;
} listing;

static bool is_left_out(const listing *l, const char *key) {
  for (int i = 0; l->left_out[i]; i++)
    if (strcmp(key, l->left_out[i]) == 0) return true;
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

bool fsdp_model_differs(const fsdp_model_config *a, const fsdp_model_config *b, fsdp_model_scope scope,
                        char *out, size_t out_bytes) {
  static const char *const nothing[] = {NULL};
  bool all = scope == FSDP_MODEL_ALL || a->family != b->family;
  listing l = {.left_out = all ? nothing : a->family->keys_without_numbers, .out = out, .bytes = out_bytes};
  json_t *from = fsdp_model_print(a), *to = fsdp_model_print(b);
  if (out_bytes) *out = 0;
  compare_objects(&l, "", from, to);
  json_decref(from);
  json_decref(to);
  return l.differs;
}
