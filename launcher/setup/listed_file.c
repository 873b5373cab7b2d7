#include "launcher/setup/listed_file.h"

#include "runtime/base/check.h"
#include "runtime/base/nearest.h"
#include "runtime/data/yaml_file.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define PLACE_BYTES 160

// Names are looked up one by one.
enum { TENSORS_MAX = 10000 };

typedef struct reader {
  const char *path;
  fsdp_graph *graph;
  fsdp_value_role role;       // of the section
  fsdp_listed_operator *spec; // of the operator that is being read
  char attributes[256];       // those that it has, each with a space behind it
  fsdp_yaml_reader yaml;
} reader;

static fsdp_status fail_at(const reader *r, const yaml_node_t *node, const char *what) {
  return fsdp_yaml_fail_at(&r->yaml, node, what);
}

// A new name of a tensor or an operator, such that strategies can name it.
static fsdp_status read_name(const reader *r, const yaml_node_t *key) {
  char what[FSDP_NAME_BYTES + 80];
  const char *name = fsdp_yaml_text(key);
  bool is_word = isalpha((unsigned char)*name) || *name == '_';
  for (const char *c = name; *c; c++) is_word = is_word && (isalnum((unsigned char)*c) || strchr("_.-/", *c));
  if (!is_word) return fail_at(r, key, "a name is not a word: use a letter, then letters, digits, _ . - /");
  if (strlen(name) >= FSDP_NAME_BYTES) return fail_at(r, key, "a name is too long");
  if (r->graph->value_count == TENSORS_MAX)
    return fail_at(r, key, "more than 10000 tensors and operators: plan a part of the network");
  if (fsdp_listed_find(r->graph, name) < 0) return FSDP_OK;
  snprintf(what, sizeof what, "there is a \"%s\" already: give each tensor and operator a name of its own",
           name);
  return fail_at(r, key, what);
}

// Up to FSDP_MAX_DIMS whole numbers of at least `least`.
static fsdp_status read_numbers(const reader *r, const yaml_node_t *node, int64_t least, int64_t *numbers,
                                int *count) {
  const yaml_node_t *item;
  *count = 0;
  if (node->type != YAML_SEQUENCE_NODE) return fail_at(r, node, "not a list, as in [16, 32]");
  for (; (item = fsdp_yaml_item(r->yaml.document, node, *count)); ++*count) {
    if (*count == FSDP_MAX_DIMS) return fail_at(r, node, "more than four dimensions");
    bool fits = fsdp_yaml_integer(item, &numbers[*count]);
    if (!fits || numbers[*count] < least || numbers[*count] > INT32_MAX)
      return fail_at(r, item,
                     least ? "not a size: use a whole number from 1 to 2147483647"
                           : "not a dimension: use a whole number from 0");
  }
  return FSDP_OK;
}

static fsdp_status read_tensor(void *context, const yaml_node_t *key, const yaml_node_t *value) {
  const reader *r = context;
  int64_t shape[FSDP_MAX_DIMS];
  int dims;
  fsdp_status status = read_name(r, key);
  if (!status) status = read_numbers(r, value, 1, shape, &dims);
  if (status) return status;
  if (!fsdp_listed_fits(dims, shape)) return fail_at(r, value, "a tensor of more than 2^40 items");
  fsdp_listed_tensor(r->graph, r->role, fsdp_yaml_text(key), dims, shape);
  return FSDP_OK;
}

// ---- Operators

// An operator reads what no tensor before it is called.
static fsdp_status fail_unknown(const reader *r, const yaml_node_t *node) {
  char near[FSDP_NEAREST_TEXT], what[FSDP_NEAREST_TEXT + FSDP_NAME_BYTES + 160];
  const char **names = fsdp_alloc((size_t)(r->graph->value_count + 1) * sizeof *names);
  for (int v = 0; v < r->graph->value_count; v++) names[v] = r->graph->values[v].name;
  fsdp_nearest_question(fsdp_yaml_text(node), names, r->graph->value_count, near);
  snprintf(what, sizeof what,
           "no input, parameter or earlier operator has the name \"%.95s\"%s: operators come after what they "
           "read",
           fsdp_yaml_text(node), near);
  free(names);
  return fail_at(r, node, what);
}

static fsdp_status read_inputs(const reader *r, const yaml_node_t *node, fsdp_listed_operator *spec) {
  if (node->type != YAML_SEQUENCE_NODE) return fail_at(r, node, "an operator's inputs are not a list");
  const yaml_node_t *name;
  for (int i = 0; (name = fsdp_yaml_item(r->yaml.document, node, i)); i++) {
    if (!fsdp_yaml_is_scalar(name)) return fail_at(r, name, "an input is not a name");
    int found = fsdp_listed_find(r->graph, fsdp_yaml_text(name));
    if (found < 0) return fail_unknown(r, name);
    if (spec->input_count == FSDP_LISTED_INPUTS) return fail_at(r, node, "too many inputs");
    spec->inputs[spec->input_count++] = found;
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

static fsdp_status read_attribute(const reader *r, const char *name, const yaml_node_t *value,
                                  bool *is_known) {
  int64_t numbers[FSDP_MAX_DIMS] = {0};
  fsdp_listed_operator *spec = r->spec;
  fsdp_status status = FSDP_OK;
  *is_known = true;
  if (!strcmp(name, "begin")) {
    status = read_number(r, value, &spec->begin);
  } else if (!strcmp(name, "size")) {
    status = read_number(r, value, &spec->size);
  } else if (!strcmp(name, "transposed")) {
    status = read_flag(r, value, &spec->transposed);
  } else if (!strcmp(name, "keep")) {
    status = read_flag(r, value, &spec->keeps_axis);
  } else if (!strcmp(name, "axis")) {
    status = read_number(r, value, &numbers[0]);
    spec->axis = (int)numbers[0];
  } else if (!strcmp(name, "permutation")) {
    status = read_numbers(r, value, 0, numbers, &spec->permutation_count);
    for (int d = 0; d < FSDP_MAX_DIMS; d++) spec->permutation[d] = (int)numbers[d];
  } else {
    *is_known = false;
  }
  return status;
}

// An attribute, or the kind with its inputs.
static fsdp_status read_entry(void *context, const yaml_node_t *key, const yaml_node_t *value) {
  reader *r = context;
  const char *name = fsdp_yaml_text(key);
  bool is_attribute;
  fsdp_status status = read_attribute(r, name, value, &is_attribute);
  if (is_attribute) {
    size_t used = strlen(r->attributes);
    snprintf(r->attributes + used, sizeof r->attributes - used, "%s ", name);
    return status;
  }
  if (r->spec->kind)
    return fail_at(r, key,
                   "neither an attribute nor the only kind: an operator is {kind: [inputs]}, and its "
                   "attributes");
  r->spec->kind = name;
  return read_inputs(r, value, r->spec);
}

static fsdp_status read_operator(void *context, const yaml_node_t *key, const yaml_node_t *value) {
  reader *r = context;
  char place[PLACE_BYTES];
  fsdp_status status = read_name(r, key);
  if (status) return status;
  snprintf(place, sizeof place, "%.140s:%d", r->path, fsdp_yaml_line(key));
  fsdp_listed_operator spec = {.name = fsdp_yaml_text(key), .attributes = r->attributes, .place = place};
  r->spec = &spec;
  r->attributes[0] = 0;
  status = fsdp_yaml_each_pair(&r->yaml, value,
                               "an operator is written as {kind: [inputs]}, as in fc1: {matmul: [x, w1]}",
                               read_entry, r);
  if (!status && !spec.kind)
    return fail_at(r, value, "the operator's kind is missing, as in fc1: {matmul: [x, w1]}");
  return status ? status : fsdp_listed_add(r->graph, &spec, r->yaml.error);
}

static fsdp_status read_section(void *context, const yaml_node_t *key, const yaml_node_t *value) {
  static const char *const names[] = {"inputs", "parameters", "operators"};
  reader *r = context;
  const char *name = fsdp_yaml_text(key);
  if (!strcmp(name, names[2]))
    return fsdp_yaml_each_pair(&r->yaml, value, "not a mapping of names to operators", read_operator, r);
  if (strcmp(name, names[0]) != 0 && strcmp(name, names[1]) != 0)
    return fail_at(r, key, "unknown section: a network has inputs, parameters and operators");
  r->role = strcmp(name, names[0]) ? FSDP_VALUE_PARAM : FSDP_VALUE_INPUT;
  return fsdp_yaml_each_pair(&r->yaml, value, "not a mapping of names to shapes", read_tensor, r);
}

static fsdp_status read_document(void *context, yaml_document_t *document, fsdp_error *error) {
  reader *r = context;
  r->yaml = (fsdp_yaml_reader){.path = r->path, .bad = FSDP_ERR_INPUT, .document = document, .error = error};
  return fsdp_yaml_each_pair(&r->yaml, yaml_document_get_root_node(document),
                             "not a network: it has the sections inputs, parameters and operators",
                             read_section, r);
}

fsdp_status fsdp_listed_read(const char *path, fsdp_graph **graph, fsdp_error *error) {
  reader r = {.path = path, .graph = fsdp_listed_create()};
  const fsdp_yaml_source source = {.path = path, .what = "a YAML file of operators", .bad = FSDP_ERR_INPUT};
  fsdp_status status = fsdp_yaml_visit_file(&source, read_document, &r, error);
  if (!status && r.graph->forward_count == 0)
    status = fsdp_fail(error, FSDP_ERR_INPUT, "%.140s: no operators: list them under `operators:`", path);
  if (status) fsdp_graph_destroy(r.graph);
  *graph = status ? NULL : r.graph;
  return status;
}
