#include "runtime/plan/text/profile_reader.h"

#include "runtime/base/check.h"
#include "runtime/base/nearest.h"
#include "runtime/plan/text/decimal.h"

#include <stdarg.h>
#include <string.h>

fsdp_status fsdp_profile_fail_at(const fsdp_profile_reader *r, const yaml_node_t *node, const char *format,
                                 ...) {
  char what[700];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  return fsdp_fail(r->error, FSDP_ERR_INPUT, "%.180s:%d: %s", r->places[r->depth - 1], fsdp_yaml_line(node),
                   what);
}

const yaml_node_t *fsdp_profile_node(const fsdp_profile_reader *r, int index) {
  return yaml_document_get_node(r->document, index);
}

// Names side by side, for a message.
static const char *list_of(const char *const *names, int count, char *out, size_t out_bytes) {
  size_t used = 0;
  *out = 0;
  for (int i = 0; i < count && used < out_bytes; i++)
    used += (size_t)snprintf(out + used, out_bytes - used, "%s%s", i ? ", " : "", names[i]);
  return out;
}

// The index of the scalar's word among `names`.
fsdp_status fsdp_profile_read_word(const fsdp_profile_reader *r, const yaml_node_t *node, const char *what,
                                   const char *const *names, int count, int *index) {
  char all[400];
  const char *text = fsdp_yaml_is_scalar(node) ? fsdp_yaml_text(node) : NULL;
  if (!text) return fsdp_profile_fail_at(r, node, "the %s is not a word", what);
  for (*index = 0; *index < count; ++*index)
    if (!strcmp(text, names[*index])) return FSDP_OK;
  const int nearest = fsdp_nearest_word(text, names, count);
  if (nearest >= 0)
    return fsdp_profile_fail_at(r, node, "unknown %s \"%.60s\": did you mean %s?", what, text,
                                names[nearest]);
  return fsdp_profile_fail_at(r, node, "unknown %s \"%.60s\": use one of %s", what, text,
                              list_of(names, count, all, sizeof all));
}

fsdp_status fsdp_profile_read_key(const fsdp_profile_reader *r, const yaml_node_pair_t *pair,
                                  const char *const *keys, int count, unsigned *seen, int *key) {
  const yaml_node_t *node = fsdp_profile_node(r, pair->key);
  fsdp_status status = fsdp_profile_read_word(r, node, "key", keys, count, key);
  if (status) return status;
  if (*seen & 1u << *key) return fsdp_profile_fail_at(r, node, "a second %s; remove one", keys[*key]);
  *seen |= 1u << *key;
  return FSDP_OK;
}

// ---- Numbers

// Of seconds, and of bytes, FLOPs and either per second: products and quotients of a few of them are finite.
#define NUMBER_MIN 1e-15
#define NUMBER_MAX 1e30

// A scalar, or the value of {value: ..., source: ...}. With `mark` `estimated: true` may stand there, which
// sets it; else it is false.
static fsdp_status read_value(const fsdp_profile_reader *r, const yaml_node_t *node,
                              const yaml_node_t **value, bool *mark) {
  static const char *const keys[] = {"value", "source", "estimated"}, *const flags[] = {"false", "true"};
  unsigned seen = 0;
  *value = node->type == YAML_SCALAR_NODE ? node : NULL;
  if (mark) *mark = false;
  if (node->type != YAML_MAPPING_NODE) return FSDP_OK;
  for (const yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top;
       pair++) {
    int key;
    fsdp_status status = fsdp_profile_read_key(r, pair, keys, mark ? 3 : 2, &seen, &key);
    if (status) return status;
    if (key == 0) *value = fsdp_profile_node(r, pair->value);
    if (key == 1 && !fsdp_yaml_is_scalar(fsdp_profile_node(r, pair->value)))
      return fsdp_profile_fail_at(r, fsdp_profile_node(r, pair->value), "a source is not a text");
    int flag = 0;
    if (key == 2)
      status = fsdp_profile_read_word(r, fsdp_profile_node(r, pair->value), "mark of an estimate", flags, 2,
                                      &flag);
    if (status) return status;
    if (key == 2) *mark = flag == 1;
  }
  return FSDP_OK;
}

fsdp_status fsdp_profile_read_number(const fsdp_profile_reader *r, const yaml_node_t *node,
                                     const fsdp_profile_unit *unit, double *number, bool *mark) {
  const char *what = unit->what;
  const yaml_node_t *value;
  fsdp_status status = read_value(r, node, &value, mark);
  if (status) return status;
  if (!value || !fsdp_yaml_is_scalar(value))
    return fsdp_profile_fail_at(r, node, "%s is not a number: write 2.5, or {value: 2.5, source: \"...\"}",
                                what);
  if (!fsdp_decimal_read(fsdp_yaml_text(value), unit->exponent, number))
    return fsdp_profile_fail_at(r, value, "%s is \"%.60s\", which is not a number", what,
                                fsdp_yaml_text(value));
  if (*number <= 0)
    return fsdp_profile_fail_at(r, value, "%s is %.60s: use a number above 0, or leave it out", what,
                                fsdp_yaml_text(value));
  if (*number < NUMBER_MIN || *number > NUMBER_MAX)
    return fsdp_profile_fail_at(r, value, "%s is %.60s: in its unit that is beyond any machine; correct it",
                                what, fsdp_yaml_text(value));
  if (*number < unit->least)
    return fsdp_profile_fail_at(r, value, "%s is %.60s: use a number from %g", what, fsdp_yaml_text(value),
                                unit->least);
  return FSDP_OK;
}

fsdp_status fsdp_profile_read_whole(const fsdp_profile_reader *r, const yaml_node_t *node, const char *what,
                                    int64_t least, int64_t *number) {
  const yaml_node_t *value;
  fsdp_status status = read_value(r, node, &value, NULL);
  if (status) return status;
  if (!value || !fsdp_yaml_integer(value, number) || *number < least || *number > INT32_MAX)
    return fsdp_profile_fail_at(r, value ? value : node, "%s is \"%.60s\": use a whole number from %lld",
                                what, value && fsdp_yaml_is_scalar(value) ? fsdp_yaml_text(value) : "",
                                (long long)least);
  return FSDP_OK;
}

// Appends to *curve, whose points the caller frees.
fsdp_status fsdp_profile_read_curve(const fsdp_profile_reader *r, const yaml_node_t *node, const char *what,
                                    int exponent, fsdp_profile_curve *curve) {
  if (node->type != YAML_MAPPING_NODE || node->data.mapping.pairs.start == node->data.mapping.pairs.top)
    return fsdp_profile_fail_at(r, node, "%s has no points: write {size: number, ...}", what);
  const yaml_node_pair_t *begin = node->data.mapping.pairs.start, *end = node->data.mapping.pairs.top;
  const fsdp_profile_unit size = {.what = "a size"}, rate = {.what = what, .exponent = exponent};
  curve->points = fsdp_alloc((size_t)(end - begin) * sizeof *curve->points);
  for (const yaml_node_pair_t *pair = begin; pair < end; pair++) {
    fsdp_profile_point *point = &curve->points[curve->count];
    fsdp_status status =
        fsdp_profile_read_number(r, fsdp_profile_node(r, pair->key), &size, &point->size, NULL);
    if (!status)
      status = fsdp_profile_read_number(r, fsdp_profile_node(r, pair->value), &rate, &point->value, NULL);
    if (status) return status;
    if (curve->count > 0 && point->size <= point[-1].size)
      return fsdp_profile_fail_at(r, fsdp_profile_node(r, pair->key),
                                  "sizes of %s do not increase at %.60s: sort them", what,
                                  fsdp_yaml_text(fsdp_profile_node(r, pair->key)));
    curve->count++;
  }
  return FSDP_OK;
}
