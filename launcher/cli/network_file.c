#include "launcher/cli/network_file.h"

#include "launcher/cli/yaml_document.h"
#include "runtime/base/check.h"

#include <stdlib.h>
#include <string.h>

#define PLACE_BYTES 160

typedef struct reader {
  const char *path;
  int item_bytes;
  fsdp_network *network;
  yaml_document_t *document;
  fsdp_error *error;
} reader;

static fsdp_status fail_at(const reader *r, const yaml_node_t *node, const char *what) {
  return fsdp_fail(r->error, FSDP_ERR_INPUT, "%.140s:%d: %s", r->path, fsdp_yaml_line(node), what);
}

static const yaml_node_t *node_of(const reader *r, int index) {
  return yaml_document_get_node(r->document, index);
}

// A new name of a tensor or an operator.
static fsdp_status read_name(const reader *r, const yaml_node_t *key) {
  char what[FSDP_NAME_BYTES + 80];
  if (!fsdp_yaml_is_scalar(key) || !*fsdp_yaml_text(key)) return fail_at(r, key, "a name is not a word");
  if (strlen(fsdp_yaml_text(key)) >= FSDP_NAME_BYTES) return fail_at(r, key, "a name is too long");
  if (fsdp_network_find(r->network, fsdp_yaml_text(key)) < 0) return FSDP_OK;
  snprintf(what, sizeof what, "there is a \"%s\" already: give each tensor and operator a name of its own",
           fsdp_yaml_text(key));
  return fail_at(r, key, what);
}

// Up to FSDP_MAX_DIMS whole numbers of at least `least`.
static fsdp_status read_numbers(const reader *r, const yaml_node_t *node, int64_t least, int64_t *numbers,
                                int *count) {
  *count = 0;
  if (node->type != YAML_SEQUENCE_NODE) return fail_at(r, node, "not a list, as in [16, 32]");
  for (const yaml_node_item_t *item = node->data.sequence.items.start; item < node->data.sequence.items.top;
       item++) {
    if (*count == FSDP_MAX_DIMS) return fail_at(r, node, "more than four dimensions");
    bool fits = fsdp_yaml_integer(node_of(r, *item), &numbers[*count]);
    if (!fits || numbers[*count] < least || numbers[*count] > INT32_MAX)
      return fail_at(r, node_of(r, *item), "not a size: use a whole number from 1");
    ++*count;
  }
  return FSDP_OK;
}

static fsdp_status read_tensors(const reader *r, const yaml_node_t *node, fsdp_operator_tensor_role role) {
  fsdp_status status = FSDP_OK;
  if (node->type != YAML_MAPPING_NODE) return fail_at(r, node, "not a mapping of names to shapes");
  for (const yaml_node_pair_t *pair = node->data.mapping.pairs.start;
       pair < node->data.mapping.pairs.top && !status; pair++) {
    fsdp_operator_tensor tensor = {.role = role, .item_bytes = r->item_bytes, .maker = -1, .source = -1};
    status = read_name(r, node_of(r, pair->key));
    if (!status) status = read_numbers(r, node_of(r, pair->value), 1, tensor.shape, &tensor.dims);
    if (status) return status;
    snprintf(tensor.name, sizeof tensor.name, "%s", fsdp_yaml_text(node_of(r, pair->key)));
    fsdp_network_tensor(r->network, &tensor);
  }
  return status;
}

// ---- Operators

static fsdp_status read_inputs(const reader *r, const yaml_node_t *node, fsdp_operator_spec *spec) {
  if (node->type != YAML_SEQUENCE_NODE) return fail_at(r, node, "an operator's inputs are not a list");
  for (const yaml_node_item_t *item = node->data.sequence.items.start; item < node->data.sequence.items.top;
       item++) {
    const yaml_node_t *name = node_of(r, *item);
    if (!fsdp_yaml_is_scalar(name)) return fail_at(r, name, "an input is not a name");
    int tensor = fsdp_network_find(r->network, fsdp_yaml_text(name));
    char what[2 * FSDP_NAME_BYTES + 160];
    snprintf(what, sizeof what,
             "no input, parameter or earlier operator has the name \"%.95s\": operators come after what they "
             "read",
             fsdp_yaml_text(name));
    if (tensor < 0) return fail_at(r, name, what);
    if (spec->input_count == FSDP_OPERATOR_LISTS) return fail_at(r, node, "too many inputs");
    spec->inputs[spec->input_count++] = tensor;
  }
  return FSDP_OK;
}

static fsdp_status read_number(const reader *r, const yaml_node_t *node, int64_t *number) {
  bool fits = fsdp_yaml_integer(node, number) && *number >= 0 && *number <= INT32_MAX;
  return fits ? FSDP_OK : fail_at(r, node, "not a whole number from 0");
}

static fsdp_status read_flag(const reader *r, const yaml_node_t *node, bool *flag) {
  const char *text = fsdp_yaml_is_scalar(node) ? fsdp_yaml_text(node) : "";
  *flag = !strcmp(text, "true");
  return *flag || !strcmp(text, "false") ? FSDP_OK : fail_at(r, node, "neither true nor false");
}

// An attribute, or the kind with its inputs.
static fsdp_status read_entry(const reader *r, const yaml_node_pair_t *pair, fsdp_operator_spec *spec) {
  const yaml_node_t *key = node_of(r, pair->key), *value = node_of(r, pair->value);
  int64_t numbers[FSDP_MAX_DIMS] = {0};
  if (!fsdp_yaml_is_scalar(key)) return fail_at(r, key, "an attribute is not a word");
  const char *name = fsdp_yaml_text(key);
  fsdp_status status;
  if (!strcmp(name, "begin")) return read_number(r, value, &spec->begin);
  if (!strcmp(name, "size")) return read_number(r, value, &spec->size);
  if (!strcmp(name, "transposed")) return read_flag(r, value, &spec->transposed);
  if (!strcmp(name, "keep")) return read_flag(r, value, &spec->keeps_axis);
  if (!strcmp(name, "axis")) {
    status = read_number(r, value, &numbers[0]);
    spec->axis = (int)numbers[0];
    return status;
  }
  if (!strcmp(name, "permutation")) {
    status = read_numbers(r, value, 0, numbers, &spec->permutation_count);
    for (int d = 0; d < FSDP_MAX_DIMS; d++) spec->permutation[d] = (int)numbers[d];
    return status;
  }
  if (spec->kind) return fail_at(r, key, "a second kind: an operator is one of them, with attributes");
  spec->kind = name;
  return read_inputs(r, value, spec);
}

static fsdp_status read_operator(const reader *r, const yaml_node_pair_t *pair) {
  const yaml_node_t *key = node_of(r, pair->key), *value = node_of(r, pair->value);
  char place[PLACE_BYTES];
  fsdp_status status = read_name(r, key);
  if (status) return status;
  snprintf(place, sizeof place, "%.140s:%d", r->path, fsdp_yaml_line(key));
  fsdp_operator_spec spec = {.name = fsdp_yaml_text(key), .item_bytes = r->item_bytes, .place = place};
  if (value->type != YAML_MAPPING_NODE)
    return fail_at(r, value, "an operator is written as {kind: [inputs]}, as in fc1: {matmul: [x, w1]}");
  for (const yaml_node_pair_t *entry = value->data.mapping.pairs.start;
       entry < value->data.mapping.pairs.top && !status; entry++)
    status = read_entry(r, entry, &spec);
  if (!status && !spec.kind)
    return fail_at(r, value, "the operator's kind is missing, as in fc1: {matmul: [x, w1]}");
  return status ? status : fsdp_network_add(r->network, &spec, r->error);
}

static fsdp_status read_section(const reader *r, const yaml_node_pair_t *pair) {
  static const char *const names[] = {"inputs", "parameters", "operators"};
  const yaml_node_t *key = node_of(r, pair->key), *value = node_of(r, pair->value);
  const char *name = fsdp_yaml_is_scalar(key) ? fsdp_yaml_text(key) : "";
  if (!strcmp(name, names[0])) return read_tensors(r, value, FSDP_TENSOR_INPUT);
  if (!strcmp(name, names[1])) return read_tensors(r, value, FSDP_TENSOR_PARAMETER);
  if (strcmp(name, names[2]) != 0)
    return fail_at(r, key, "unknown section: a network has inputs, parameters and operators");
  fsdp_status status = FSDP_OK;
  if (value->type != YAML_MAPPING_NODE) return fail_at(r, value, "not a mapping of names to operators");
  for (const yaml_node_pair_t *one = value->data.mapping.pairs.start;
       one < value->data.mapping.pairs.top && !status; one++)
    status = read_operator(r, one);
  return status;
}

static fsdp_status read_document(void *context, yaml_document_t *document, fsdp_error *error) {
  reader *r = context;
  const yaml_node_t *root = yaml_document_get_root_node(document);
  fsdp_status status = FSDP_OK;
  r->document = document;
  r->error = error;
  if (root->type != YAML_MAPPING_NODE)
    return fail_at(r, root, "not a network: it has the sections inputs, parameters and operators");
  for (const yaml_node_pair_t *pair = root->data.mapping.pairs.start;
       pair < root->data.mapping.pairs.top && !status; pair++)
    status = read_section(r, pair);
  return status;
}

fsdp_status fsdp_network_read(const char *path, int item_bytes, fsdp_network **network, fsdp_error *error) {
  reader r = {.path = path, .item_bytes = item_bytes, .network = fsdp_network_create()};
  const fsdp_yaml_source source = {.path = path, .what = "a YAML file of operators", .bad = FSDP_ERR_INPUT};
  fsdp_status status = fsdp_yaml_visit(&source, read_document, &r, error);
  if (!status && r.network->operator_count == 0)
    status = fsdp_fail(error, FSDP_ERR_INPUT, "%s: no operators: list them under `operators:`", path);
  if (status) fsdp_network_destroy(r.network);
  *network = status ? NULL : r.network;
  return status;
}
