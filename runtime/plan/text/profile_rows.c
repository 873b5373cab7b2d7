// The lists of a profile: rows of fields.
#include "runtime/plan/text/profile_keys.h"
#include "runtime/plan/text/profile_reader.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

typedef enum field_type {
  FIELD_WHOLE,
  FIELD_LONG,
  FIELD_WORD,
  FIELD_FLAG,
  FIELD_NAME,
  FIELD_RATE,
  FIELD_CURVE
} field_type;

typedef struct field {
  const char *key;
  field_type type;
  size_t offset;
  bool required;
  int number; // WHOLE, LONG: the least; WORD: the value of the first word; RATE, CURVE: the unit's exponent
  const char *const *words;
  int word_count;
} field;

static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
static const char *const ops[] = {
#define FSDP_OP(KIND, name, PHASE, operands, RULES) #name,
#include "models/graph/ops.def"
#define FSDP_GRAPH_OP(KIND, name, PHASE, operands, RULES) #name,
#include "models/graph/ops.def"
    "any"};
static const char *const collectives[] = {
#define FSDP_COLLECTIVE(KIND, name, ...) #name,
#include "runtime/base/collectives.def"
};
static const char *const flags[] = {"false", "true"};

#define WORDS(names) names, COUNT(names)

static const field product_fields[] = {
    {"ranks", FIELD_WHOLE, offsetof(fsdp_profile_product, ranks), false, 0, NULL, 0},
    {"dtype", FIELD_WORD, offsetof(fsdp_profile_product, dtype), true, FSDP_F32, WORDS(dtypes)},
    {"form", FIELD_WORD, offsetof(fsdp_profile_product, form), true, FSDP_PRODUCT_FORWARD,
     WORDS(fsdp_profile_forms)},
    {"m", FIELD_LONG, offsetof(fsdp_profile_product, m), true, 1, NULL, 0},
    {"n", FIELD_LONG, offsetof(fsdp_profile_product, n), true, 1, NULL, 0},
    {"k", FIELD_LONG, offsetof(fsdp_profile_product, k), true, 1, NULL, 0},
    {"tflops", FIELD_RATE, offsetof(fsdp_profile_product, flops_per_s), true, 12, NULL, 0},
};
static const field grouped_fields[] = {
    {"kernel", FIELD_NAME, offsetof(fsdp_profile_grouped, kernel), true, 0, NULL, 0},
    {"ranks", FIELD_WHOLE, offsetof(fsdp_profile_grouped, ranks), false, 0, NULL, 0},
    {"dtype", FIELD_WORD, offsetof(fsdp_profile_grouped, dtype), true, FSDP_F32, WORDS(dtypes)},
    {"form", FIELD_WORD, offsetof(fsdp_profile_grouped, form), true, FSDP_PRODUCT_FORWARD,
     WORDS(fsdp_profile_forms)},
    {"tflops", FIELD_CURVE, offsetof(fsdp_profile_grouped, rate), true, 12, NULL, 0},
    {"estimated", FIELD_FLAG, offsetof(fsdp_profile_grouped, estimated), false, 0, WORDS(flags)},
};
static const field attention_fields[] = {
    {"kernel", FIELD_NAME, offsetof(fsdp_profile_attention, kernel), true, 0, NULL, 0},
    {"ranks", FIELD_WHOLE, offsetof(fsdp_profile_attention, ranks), false, 0, NULL, 0},
    {"dtype", FIELD_WORD, offsetof(fsdp_profile_attention, dtype), true, FSDP_F32, WORDS(dtypes)},
    {"head_dim", FIELD_WHOLE, offsetof(fsdp_profile_attention, head_dim), true, 1, NULL, 0},
    {"direction", FIELD_WORD, offsetof(fsdp_profile_attention, direction), true, FSDP_ATTENTION_FORWARD,
     WORDS(fsdp_profile_directions)},
    {"tflops", FIELD_CURVE, offsetof(fsdp_profile_attention, rate), true, 12, NULL, 0},
    {"estimated", FIELD_FLAG, offsetof(fsdp_profile_attention, estimated), false, 0, WORDS(flags)},
};
static const field op_fields[] = {
    {"ranks", FIELD_WHOLE, offsetof(fsdp_profile_op, ranks), false, 0, NULL, 0},
    {"op", FIELD_WORD, offsetof(fsdp_profile_op, op), true, 0, WORDS(ops)},
    {"dtype", FIELD_WORD, offsetof(fsdp_profile_op, dtype), false, FSDP_F32, WORDS(dtypes)},
    {"gbps", FIELD_CURVE, offsetof(fsdp_profile_op, rate), true, 9, NULL, 0},
};
static const field collective_fields[] = {
    {"kind", FIELD_WORD, offsetof(fsdp_profile_collective, kind), true, 0, WORDS(collectives)},
    {"link", FIELD_WORD, offsetof(fsdp_profile_collective, link), true, FSDP_LINK_NODE,
     WORDS(fsdp_profile_links)},
    {"ranks", FIELD_WHOLE, offsetof(fsdp_profile_collective, ranks), true, 2, NULL, 0},
    {"ranks_per_node", FIELD_WHOLE, offsetof(fsdp_profile_collective, ranks_per_node), false, 0, NULL, 0},
    {"groups", FIELD_WHOLE, offsetof(fsdp_profile_collective, groups), false, 0, NULL, 0},
    {"us", FIELD_CURVE, offsetof(fsdp_profile_collective, seconds), true, -6, NULL, 0},
};

typedef union row {
  fsdp_profile_product product;
  fsdp_profile_grouped grouped;
  fsdp_profile_attention attention;
  fsdp_profile_op op;
  fsdp_profile_collective collective;
} row;

static fsdp_status read_field(const fsdp_profile_reader *r, const yaml_node_t *node, const field *f,
                              row *out) {
  void *at = (char *)out + f->offset;
  fsdp_status status = FSDP_OK;
  int64_t whole = 0;
  int number = 0;
  switch (f->type) {
  case FIELD_WHOLE:
    status = fsdp_profile_read_whole(r, node, f->key, f->number, &whole);
    number = (int)whole;
    memcpy(at, &number, sizeof number);
    return status;
  case FIELD_LONG:
    status = fsdp_profile_read_whole(r, node, f->key, f->number, &whole);
    memcpy(at, &whole, sizeof whole);
    return status;
  case FIELD_WORD:
    status = fsdp_profile_read_word(r, node, f->key, f->words, f->word_count, &number);
    number += f->number;
    memcpy(at, &number, sizeof number);
    return status;
  case FIELD_FLAG:
    status = fsdp_profile_read_word(r, node, f->key, f->words, f->word_count, &number);
    *(bool *)at = number == 1;
    return status;
  case FIELD_NAME:
    if (!fsdp_yaml_is_scalar(node) || !*fsdp_yaml_text(node) ||
        strlen(fsdp_yaml_text(node)) >= sizeof out->attention.kernel)
      return fsdp_profile_fail_at(r, node, "a %s is not a word of at most %zu characters", f->key,
                                  sizeof out->attention.kernel - 1);
    strcpy(at, fsdp_yaml_text(node));
    return FSDP_OK;
  case FIELD_RATE:
    return fsdp_profile_read_number(r, node, &(fsdp_profile_unit){.what = f->key, .exponent = (int)f->number},
                                    at, NULL);
  default:
    return fsdp_profile_read_curve(r, node, f->key, f->number, at);
  }
}

// The mapping's fields into a zeroed `out`; `keys` are their names and at the end "source".
static fsdp_status read_row(const fsdp_profile_reader *r, const yaml_node_t *node, const field *fields,
                            int count, const char *const *keys, row *out) {
  unsigned seen = 0;
  if (node->type != YAML_MAPPING_NODE)
    return fsdp_profile_fail_at(r, node, "a row is not a mapping, as in {key: value}");
  for (const yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top;
       pair++) {
    const yaml_node_t *key_node = fsdp_profile_node(r, pair->key), *value = fsdp_profile_node(r, pair->value);
    int key;
    fsdp_status status = fsdp_profile_read_word(r, key_node, "key", keys, count + 1, &key);
    if (status) return status;
    if (seen & 1u << key)
      return fsdp_profile_fail_at(r, key_node, "a second %s in one row; remove one", keys[key]);
    seen |= 1u << key;
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

// Frees what a list has; it is empty then.
static void clear_list(fsdp_device_profile *p, fsdp_profile_list list) {
  switch (list) {
  case FSDP_PROFILE_PRODUCTS:
    free(p->products);
    p->products = NULL;
    p->product_count = 0;
    return;
  case FSDP_PROFILE_GROUPED:
    for (int i = 0; i < p->grouped_count; i++) free(p->grouped[i].rate.points);
    free(p->grouped);
    p->grouped = NULL;
    p->grouped_count = 0;
    return;
  case FSDP_PROFILE_ATTENTION:
    for (int i = 0; i < p->attention_count; i++) free(p->attention[i].rate.points);
    free(p->attention);
    p->attention = NULL;
    p->attention_count = 0;
    return;
  case FSDP_PROFILE_OPS:
    for (int i = 0; i < p->op_count; i++) free(p->ops[i].rate.points);
    free(p->ops);
    p->ops = NULL;
    p->op_count = 0;
    return;
  default:
    for (int i = 0; i < p->collective_count; i++) free(p->collectives[i].seconds.points);
    free(p->collectives);
    p->collectives = NULL;
    p->collective_count = 0;
  }
}

static fsdp_status read_list_row(const fsdp_profile_reader *r, const yaml_node_t *node,
                                 fsdp_profile_list list) {
  static const struct {
    const field *fields;
    int count;
    const char *keys[9];
  } rows[] = {
      {product_fields, COUNT(product_fields), {"ranks", "dtype", "form", "m", "n", "k", "tflops", "source"}},
      {grouped_fields,
       COUNT(grouped_fields),
       {"kernel", "ranks", "dtype", "form", "tflops", "estimated", "source"}},
      {attention_fields,
       COUNT(attention_fields),
       {"kernel", "ranks", "dtype", "head_dim", "direction", "tflops", "estimated", "source"}},
      {op_fields, COUNT(op_fields), {"ranks", "op", "dtype", "gbps", "source"}},
      {collective_fields,
       COUNT(collective_fields),
       {"kind", "link", "ranks", "ranks_per_node", "groups", "us", "source"}},
  };
  row out;
  memset(&out, 0, sizeof out);
  if (list == FSDP_PROFILE_COLLECTIVES) out.collective.groups = 1;
  if (list == FSDP_PROFILE_OPS) out.op.dtype = FSDP_PROFILE_ANY_DTYPE;
  fsdp_status status = read_row(r, node, rows[list].fields, rows[list].count, rows[list].keys, &out);
  fsdp_profile_curve *curve = NULL;
  if (list == FSDP_PROFILE_GROUPED) curve = &out.grouped.rate;
  if (list == FSDP_PROFILE_ATTENTION) curve = &out.attention.rate;
  if (list == FSDP_PROFILE_OPS) curve = &out.op.rate;
  if (list == FSDP_PROFILE_COLLECTIVES) curve = &out.collective.seconds;
  if (!status && list == FSDP_PROFILE_PRODUCTS) fsdp_device_profile_add_product(r->profile, &out.product);
  if (!status && list == FSDP_PROFILE_GROUPED) fsdp_device_profile_add_grouped(r->profile, &out.grouped);
  if (!status && list == FSDP_PROFILE_ATTENTION)
    fsdp_device_profile_add_attention(r->profile, &out.attention);
  if (!status && list == FSDP_PROFILE_OPS) fsdp_device_profile_add_op(r->profile, &out.op);
  if (!status && list == FSDP_PROFILE_COLLECTIVES)
    fsdp_device_profile_add_collective(r->profile, &out.collective);
  if (curve) free(curve->points);
  return status;
}

fsdp_status fsdp_profile_read_list(const fsdp_profile_reader *r, const yaml_node_t *node, const char *name,
                                   fsdp_profile_list list) {
  fsdp_status status = FSDP_OK;
  if (node->type != YAML_SEQUENCE_NODE)
    return fsdp_profile_fail_at(r, node, "%s is not a list of rows", name);
  clear_list(r->profile, list);
  for (const yaml_node_item_t *item = node->data.sequence.items.start;
       item < node->data.sequence.items.top && !status; item++)
    status = read_list_row(r, fsdp_profile_node(r, *item), list);
  return status;
}
