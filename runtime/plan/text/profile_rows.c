// The lists of a profile: rows of fields.
#include "runtime/plan/text/profile_keys.h"
#include "runtime/plan/text/profile_reader.h"

#include <stdlib.h>
#include <string.h>

typedef union row {
  fsdp_profile_product product;
  fsdp_profile_grouped grouped;
  fsdp_profile_attention attention;
  fsdp_profile_op op;
  fsdp_profile_collective collective;
} row;

static fsdp_status read_field(const fsdp_profile_reader *r, const yaml_node_t *node,
                              const fsdp_profile_field *f, row *out) {
  void *at = (char *)out + f->offset;
  fsdp_status status = FSDP_OK;
  int64_t whole = 0;
  int number = 0;
  static const char *const flags[] = {"false", "true"};
  switch (f->type) {
  case FSDP_FIELD_WHOLE:
    status = fsdp_profile_read_whole(r, node, f->key, f->number, &whole);
    number = (int)whole;
    memcpy(at, &number, sizeof number);
    return status;
  case FSDP_FIELD_LONG:
    status = fsdp_profile_read_whole(r, node, f->key, f->number, &whole);
    memcpy(at, &whole, sizeof whole);
    return status;
  case FSDP_FIELD_WORD:
    status = fsdp_profile_read_word(r, node, f->key, f->words, f->word_count, &number);
    number += f->number;
    memcpy(at, &number, sizeof number);
    return status;
  case FSDP_FIELD_FLAG:
    status = fsdp_profile_read_word(r, node, f->key, flags, 2, &number);
    *(bool *)at = number == 1;
    return status;
  case FSDP_FIELD_NAME:
    if (!fsdp_yaml_is_scalar(node) || !*fsdp_yaml_text(node) ||
        strlen(fsdp_yaml_text(node)) >= sizeof out->attention.kernel)
      return fsdp_profile_fail_at(r, node, "a %s is not a word of at most %zu characters", f->key,
                                  sizeof out->attention.kernel - 1);
    strcpy(at, fsdp_yaml_text(node));
    return FSDP_OK;
  case FSDP_FIELD_RATE:
    return fsdp_profile_read_number(r, node, &(fsdp_profile_unit){.what = f->key, .exponent = (int)f->number},
                                    at, NULL);
  default:
    return fsdp_profile_read_curve(r, node, f->key, f->number, at);
  }
}

// The mapping's fields, or a source, into a zeroed `out`.
static fsdp_status read_row(const fsdp_profile_reader *r, const yaml_node_t *node, fsdp_profile_list list,
                            row *out) {
  const fsdp_profile_field *fields = fsdp_profile_lists[list].fields;
  const int count = fsdp_profile_lists[list].count;
  const char *keys[FSDP_PROFILE_FIELDS_MAX + 1];
  unsigned seen = 0;
  for (int i = 0; i < count; i++) keys[i] = fields[i].key;
  keys[count] = "source";
  if (node->type != YAML_MAPPING_NODE)
    return fsdp_profile_fail_at(r, node, "a row is not a mapping, as in {key: value}");
  for (const yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top;
       pair++) {
    const yaml_node_t *value = fsdp_profile_node(r, pair->value);
    int key;
    fsdp_status status = fsdp_profile_read_key(r, pair, keys, count + 1, &seen, &key);
    if (status) return status;
    if (key == count && !fsdp_yaml_is_scalar(value))
      return fsdp_profile_fail_at(r, value, "a source is not a text");
    if (key < count) status = read_field(r, value, &fields[key], out);
    if (status) return status;
  }
  for (int i = 0; i < count; i++)
    if (fields[i].required && !(seen & 1u << i))
      return fsdp_profile_fail_at(r, node, "a row has no %s; add it", fields[i].key);
  return FSDP_OK;
}

static fsdp_status read_list_row(const fsdp_profile_reader *r, const yaml_node_t *node,
                                 fsdp_profile_list list) {
  const fsdp_profile_field *last = &fsdp_profile_lists[list].fields[fsdp_profile_lists[list].count - 1];
  row out;
  memset(&out, 0, sizeof out);
  if (list == FSDP_PROFILE_COLLECTIVES) out.collective.groups = 1;
  if (list == FSDP_PROFILE_OPS) out.op.dtype = FSDP_PROFILE_ANY_DTYPE;
  fsdp_status status = read_row(r, node, list, &out);
  if (!status) fsdp_device_profile_add(r->profile, list, &out);
  if (last->type == FSDP_FIELD_CURVE)
    free(((const fsdp_profile_curve *)((uintptr_t)&out + last->offset))->points);
  return status;
}

fsdp_status fsdp_profile_read_list(const fsdp_profile_reader *r, const yaml_node_t *node,
                                   fsdp_profile_list list) {
  fsdp_status status = FSDP_OK;
  if (node->type != YAML_SEQUENCE_NODE)
    return fsdp_profile_fail_at(r, node, "%s is not a list of rows", fsdp_profile_lists[list].key);
  fsdp_device_profile_clear(r->profile, list);
  const yaml_node_t *item;
  for (int i = 0; !status && (item = fsdp_yaml_item(r->document, node, i)); i++)
    status = read_list_row(r, item, list);
  return status;
}
