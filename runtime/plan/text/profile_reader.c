#include "runtime/plan/text/profile_reader.h"

#include "runtime/base/check.h"
#include "runtime/base/nearest.h"
#include "runtime/plan/text/value.h"

#include <stdarg.h>
#include <stdlib.h>
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

// ---- Words

// Names side by side, for a message.
static const char *list_of(const char *const *names, int count, char *out, size_t out_bytes) {
  size_t used = 0;
  *out = 0;
  for (int i = 0; i < count && used < out_bytes; i++)
    used += (size_t)snprintf(out + used, out_bytes - used, "%s%s", i ? ", " : "", names[i]);
  return out;
}

// The index of the scalar's word among `names`; `what` names it in messages.
static fsdp_status read_word(const fsdp_profile_reader *r, const yaml_node_t *node, const char *what,
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

fsdp_status fsdp_profile_read_key(const fsdp_profile_reader *r, const yaml_node_t *key,
                                  const fsdp_profile_field *mapping, unsigned *seen, int *index) {
  const char *keys[FSDP_PROFILE_FIELDS_MAX];
  for (int i = 0; i < mapping->count; i++) keys[i] = mapping->fields[i].key;
  fsdp_status status = read_word(r, key, "key", keys, mapping->count, index);
  if (status) return status;
  if (*seen & 1u << *index) return fsdp_profile_fail_at(r, key, "a second %s; remove one", keys[*index]);
  *seen |= 1u << *index;
  return FSDP_OK;
}

// A text of fewer than `bytes`.
static fsdp_status read_name(const fsdp_profile_reader *r, const yaml_node_t *node, const char *what,
                             size_t bytes, char *out) {
  if (!fsdp_yaml_is_scalar(node) || !*fsdp_yaml_text(node) || strlen(fsdp_yaml_text(node)) >= bytes)
    return fsdp_profile_fail_at(r, node, "%s is not a word of at most %zu characters", what, bytes - 1);
  strncpy(out, fsdp_yaml_text(node), bytes); // equal names are equal in all bytes
  return FSDP_OK;
}

// ---- Numbers

// Of seconds, and of bytes, FLOPs and either per second: products and quotients of a few of them are finite.
#define NUMBER_MIN 1e-15
#define NUMBER_MAX 1e30

// What stands for a number: a scalar, or {value: ..., source: ...}.
typedef struct noted {
  const yaml_node_t *value; // NULL: neither
  bool estimated;
} noted;

// With `marks`, `estimated: true` may stand there.
static fsdp_status read_noted(fsdp_profile_reader *r, const yaml_node_t *node, bool marks, noted *out) {
  static const fsdp_profile_field fields[] = {
      {"value", .type = FSDP_KEY_NODE, .offset = offsetof(noted, value)},
      {"source", .type = FSDP_KEY_SOURCE},
      {"estimated", .type = FSDP_KEY_FLAG, .offset = offsetof(noted, estimated),
       .what = "mark of an estimate"}};
  const fsdp_profile_field mapping = {.fields = fields, .count = marks ? 3 : 2};
  *out = (noted){.value = node->type == YAML_SCALAR_NODE ? node : NULL};
  return node->type == YAML_MAPPING_NODE ? fsdp_profile_read_fields(r, node, &mapping, out) : FSDP_OK;
}

// A number above 0. *mark: whether it is an estimate; NULL: nothing may say so.
static fsdp_status read_number(fsdp_profile_reader *r, const yaml_node_t *node, const fsdp_profile_field *f,
                               double *number, bool *mark) {
  noted given;
  fsdp_status status = read_noted(r, node, mark != NULL, &given);
  if (status) return status;
  if (mark) *mark = given.estimated;
  const yaml_node_t *value = given.value;
  const char *what = f->key, *text = value && fsdp_yaml_is_scalar(value) ? fsdp_yaml_text(value) : NULL;
  if (!text)
    return fsdp_profile_fail_at(r, node, "%s is not a number: write 2.5, or {value: 2.5, source: \"...\"}",
                                what);
  if (!fsdp_value_decimal(text, f->number, number))
    return fsdp_profile_fail_at(r, value, "%s is \"%.60s\", which is not a number", what, text);
  if (*number <= 0)
    return fsdp_profile_fail_at(r, value, "%s is %.60s: use a number above 0, or leave it out", what, text);
  if (*number < NUMBER_MIN || *number > NUMBER_MAX)
    return fsdp_profile_fail_at(r, value, "%s is %.60s: in its unit that is beyond any machine; correct it",
                                what, text);
  if (*number < f->least)
    return fsdp_profile_fail_at(r, value, "%s is %.60s: use a number from %g", what, text, f->least);
  return FSDP_OK;
}

static fsdp_status read_whole(fsdp_profile_reader *r, const yaml_node_t *node, const fsdp_profile_field *f,
                              int64_t *number) {
  noted given;
  fsdp_status status = read_noted(r, node, false, &given);
  if (status) return status;
  const yaml_node_t *value = given.value;
  if (!value || !fsdp_yaml_integer(value, number) || *number < f->number || *number > INT32_MAX)
    return fsdp_profile_fail_at(r, value ? value : node, "%s is \"%.60s\": use a whole number from %d",
                                f->key, value && fsdp_yaml_is_scalar(value) ? fsdp_yaml_text(value) : "",
                                f->number);
  return FSDP_OK;
}

// {size: number, ...} into an empty curve, whose points the caller frees, also after an error.
static fsdp_status read_curve(fsdp_profile_reader *r, const yaml_node_t *node, const fsdp_profile_field *f,
                              fsdp_profile_curve *curve) {
  static const fsdp_profile_field size = {.key = "a size"};
  if (node->type != YAML_MAPPING_NODE || node->data.mapping.pairs.start == node->data.mapping.pairs.top)
    return fsdp_profile_fail_at(r, node, "%s has no points: write {size: number, ...}", f->key);
  const yaml_node_pair_t *begin = node->data.mapping.pairs.start, *end = node->data.mapping.pairs.top;
  curve->points = fsdp_alloc((size_t)(end - begin) * sizeof *curve->points);
  for (const yaml_node_pair_t *pair = begin; pair < end; pair++) {
    const yaml_node_t *key = fsdp_profile_node(r, pair->key), *value = fsdp_profile_node(r, pair->value);
    fsdp_profile_point *point = &curve->points[curve->count];
    fsdp_status status = read_number(r, key, &size, &point->size, NULL);
    if (!status) status = read_number(r, value, f, &point->value, NULL);
    if (status) return status;
    if (curve->count > 0 && point->size <= point[-1].size)
      return fsdp_profile_fail_at(r, key, "sizes of %s do not increase at %.60s: sort them", f->key,
                                  fsdp_yaml_text(key));
    curve->count++;
  }
  return FSDP_OK;
}

// ---- Lists

typedef union row {
  fsdp_profile_product product;
  fsdp_profile_grouped grouped;
  fsdp_profile_attention attention;
  fsdp_profile_op op;
  fsdp_profile_collective collective;
} row;

static fsdp_status read_row(fsdp_profile_reader *r, const yaml_node_t *node, const fsdp_profile_field *f) {
  const fsdp_profile_list list = (fsdp_profile_list)f->number;
  row out;
  memset(&out, 0, sizeof out);
  if (list == FSDP_PROFILE_COLLECTIVES) out.collective.groups = 1;
  if (list == FSDP_PROFILE_OPS) out.op.dtype = FSDP_PROFILE_ANY_DTYPE;
  if (node->type != YAML_MAPPING_NODE)
    return fsdp_profile_fail_at(r, node, "a row is not a mapping, as in {key: value}");
  fsdp_status status = fsdp_profile_read_fields(r, node, f, &out);
  if (!status) fsdp_device_profile_add(r->profile, list, &out);
  for (int i = 0; i < f->count; i++)
    if (f->fields[i].type == FSDP_KEY_CURVE)
      free(((const fsdp_profile_curve *)((uintptr_t)&out + f->fields[i].offset))->points);
  return status;
}

// The whole list in place of what the profile has.
static fsdp_status read_list(fsdp_profile_reader *r, const yaml_node_t *node, const fsdp_profile_field *f) {
  fsdp_status status = FSDP_OK;
  if (node->type != YAML_SEQUENCE_NODE)
    return fsdp_profile_fail_at(r, node, "%s is not a list of rows", f->key);
  fsdp_device_profile_clear(r->profile, (fsdp_profile_list)f->number);
  const yaml_node_t *item;
  for (int i = 0; !status && (item = fsdp_yaml_item(r->document, node, i)); i++)
    status = read_row(r, item, f);
  return status;
}

// ---- Mappings

static fsdp_status read_mapping(fsdp_profile_reader *r, const yaml_node_t *node, const fsdp_profile_field *f,
                                void *out) {
  if (node->type == YAML_MAPPING_NODE) return fsdp_profile_read_fields(r, node, f, out);
  return fsdp_profile_fail_at(r, node, "%s is not a mapping, as in {%s: %s}", f->key, f->fields->key,
                              f->type == FSDP_KEY_USE ? "flash2" : "2.5");
}

// Sets the field of the struct `out`.
static fsdp_status read_field(fsdp_profile_reader *r, const yaml_node_t *node, const fsdp_profile_field *f,
                              void *out) {
  static const char *const flags[] = {"false", "true"};
  char *at = (char *)out + f->offset;
  const char *what = f->what ? f->what : f->key;
  fsdp_status status = FSDP_OK;
  int64_t whole = 0;
  int number = 0;
  switch (f->type) {
  case FSDP_KEY_WHOLE:
    status = read_whole(r, node, f, &whole);
    number = (int)whole;
    memcpy(at, &number, sizeof number);
    return status;
  case FSDP_KEY_LONG:
    status = read_whole(r, node, f, &whole);
    memcpy(at, &whole, sizeof whole);
    return status;
  case FSDP_KEY_WORD:
    status = read_word(r, node, what, f->words, f->count, &number);
    number += f->number;
    memcpy(at, &number, sizeof number);
    return status;
  case FSDP_KEY_FLAG:
    status = read_word(r, node, what, flags, 2, &number);
    *(bool *)at = number == 1;
    return status;
  case FSDP_KEY_NAME:
    return read_name(r, node, what, (size_t)f->number, at);
  case FSDP_KEY_KERNEL:
    snprintf(r->kernel_places[f->number], sizeof *r->kernel_places, "%.180s:%d", r->places[r->depth - 1],
             fsdp_yaml_line(node));
    return read_name(r, node, what, FSDP_PROFILE_KERNEL_BYTES, at);
  case FSDP_KEY_NUMBER:
    return read_number(r, node, f, (void *)at, f->mark ? (void *)((char *)out + f->mark) : NULL);
  case FSDP_KEY_CURVE:
    return read_curve(r, node, f, (void *)at);
  case FSDP_KEY_SOURCE:
    return fsdp_yaml_is_scalar(node) ? FSDP_OK : fsdp_profile_fail_at(r, node, "a source is not a text");
  case FSDP_KEY_NODE:
    memcpy(at, &node, sizeof node);
    return FSDP_OK;
  case FSDP_KEY_MAPPING:
  case FSDP_KEY_USE:
    return read_mapping(r, node, f, out);
  case FSDP_KEY_LIST:
    return read_list(r, node, f);
  case FSDP_KEY_BASE:
    return FSDP_OK;
  }
  return FSDP_OK;
}

fsdp_status fsdp_profile_read_fields(fsdp_profile_reader *r, const yaml_node_t *node,
                                     const fsdp_profile_field *mapping, void *out) {
  unsigned seen = 0;
  for (const yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top;
       pair++) {
    int i = 0;
    fsdp_status status = fsdp_profile_read_key(r, fsdp_profile_node(r, pair->key), mapping, &seen, &i);
    if (!status) status = read_field(r, fsdp_profile_node(r, pair->value), &mapping->fields[i], out);
    if (status) return status;
  }
  for (int i = 0; i < mapping->count; i++)
    if (mapping->fields[i].required && !(seen & 1u << i))
      return fsdp_profile_fail_at(r, node, "a row has no %s; add it", mapping->fields[i].key);
  return FSDP_OK;
}
