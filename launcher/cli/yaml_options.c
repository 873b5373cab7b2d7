#include "launcher/cli/yaml_options.h"

#include "runtime/base/check.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <yaml.h>

typedef struct reader {
  const char *path;
  yaml_document_t *document;
  fsdp_error *error;
} reader;

static int line_of(const yaml_node_t *node) {
  return (int)node->start_mark.line + 1;
}

static fsdp_status fail_at(const reader *r, const yaml_node_t *node, const char *what) {
  return fsdp_fail(r->error, FSDP_ERR_OPTION,
                   "%s:%d: %s; write one `name: value` per line, or `name: [a, b]`", r->path, line_of(node),
                   what);
}

static const char *scalar(const yaml_node_t *node) {
  return (const char *)node->data.scalar.value;
}

// libyaml passes the length beside the text, which may hold a NUL that a C string would be cut at.
static bool is_scalar(const yaml_node_t *node) {
  return node->type == YAML_SCALAR_NODE && strlen(scalar(node)) == node->data.scalar.length;
}

// `~` and `null` without quotes are YAML's nothing.
static const char *scalar_value(const yaml_node_t *node) {
  bool plain = node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
  return plain && (!strcmp(scalar(node), "~") || !strcmp(scalar(node), "null")) ? "" : scalar(node);
}

// The list's items joined by commas; NULL, with the error written, if one is no scalar or holds a comma
// itself.
static char *join_items(const reader *r, const yaml_node_t *list) {
  size_t length = 0;
  char *joined = fsdp_alloc(1);
  joined[0] = 0;
  for (const yaml_node_item_t *item = list->data.sequence.items.start; item < list->data.sequence.items.top;
       item++) {
    const yaml_node_t *node = yaml_document_get_node(r->document, *item);
    if (!is_scalar(node) || strchr(scalar(node), ',')) {
      fail_at(r, node, "a list's item must be a single value without a comma");
      free(joined);
      return NULL;
    }
    size_t added = strlen(scalar(node));
    joined = fsdp_realloc(joined, length + added + 2);
    if (length) joined[length++] = ',';
    memcpy(joined + length, scalar(node), added + 1);
    length += added;
  }
  return joined;
}

static fsdp_status check_new(const reader *r, const yaml_node_t *root, const yaml_node_pair_t *pair) {
  const yaml_node_t *key = yaml_document_get_node(r->document, pair->key);
  for (const yaml_node_pair_t *other = root->data.mapping.pairs.start; other < pair; other++) {
    const yaml_node_t *earlier = yaml_document_get_node(r->document, other->key);
    if (!strcmp(scalar(earlier), scalar(key)))
      return fsdp_fail(r->error, FSDP_ERR_OPTION,
                       "%s:%d: \"%.100s\" is already set in line %d; remove one of them", r->path,
                       line_of(key), scalar(key), line_of(earlier));
  }
  return FSDP_OK;
}

static fsdp_status read_pair(const reader *r, const yaml_node_t *root, const yaml_node_pair_t *pair,
                             fsdp_yaml_option option, void *context) {
  const yaml_node_t *key = yaml_document_get_node(r->document, pair->key);
  const yaml_node_t *value = yaml_document_get_node(r->document, pair->value);
  if (!is_scalar(key) || !*scalar(key)) return fail_at(r, key, "an option's name must be a single word");
  fsdp_status status = check_new(r, root, pair);
  if (status) return status;
  if (is_scalar(value)) return option(context, scalar(key), scalar_value(value), line_of(key), r->error);
  if (value->type != YAML_SEQUENCE_NODE)
    return fail_at(r, value, "an option's value must be a single value or a list of them");
  char *joined = join_items(r, value);
  if (!joined) return FSDP_ERR_OPTION;
  status = option(context, scalar(key), joined, line_of(key), r->error);
  free(joined);
  return status;
}

static fsdp_status read_document(const reader *r, fsdp_yaml_option option, void *context) {
  const yaml_node_t *root = yaml_document_get_root_node(r->document);
  fsdp_status status = FSDP_OK;
  if (!root) return FSDP_OK; // an empty file changes nothing
  if (root->type != YAML_MAPPING_NODE) return fail_at(r, root, "the file is not a list of options");
  const yaml_node_pair_t *end = root->data.mapping.pairs.top;
  for (const yaml_node_pair_t *pair = root->data.mapping.pairs.start; pair < end && !status; pair++)
    status = read_pair(r, root, pair, option, context);
  return status;
}

static fsdp_status fail_parse(const char *path, const yaml_parser_t *parser, fsdp_error *error) {
  return fsdp_fail(
      error, FSDP_ERR_OPTION,
      "%s:%zu: not valid YAML: %s; correct it there, or put quotes around a value with *, & or brackets",
      path, parser->problem_mark.line + 1, parser->problem ? parser->problem : "cannot be read");
}

fsdp_status fsdp_yaml_read(const char *path, fsdp_yaml_option option, void *context, fsdp_error *error) {
  yaml_parser_t parser;
  yaml_document_t document, second;
  FILE *file = fopen(path, "rb");
  if (!file)
    return fsdp_fail(error, FSDP_ERR_INPUT, "%s: cannot be opened (%s); give a YAML file of options", path,
                     strerror(errno));
  int made = yaml_parser_initialize(&parser);
  FSDP_CHECK(made, "out of host memory for a YAML parser");
  yaml_parser_set_input_file(&parser, file);
  fsdp_status status;
  if (!yaml_parser_load(&parser, &document)) {
    status = fail_parse(path, &parser, error);
  } else {
    reader r = {path, &document, error};
    // The whole file is parsed before its first option counts.
    if (!yaml_parser_load(&parser, &second)) {
      status = fail_parse(path, &parser, error);
    } else {
      const yaml_node_t *extra = yaml_document_get_root_node(&second);
      status =
          extra ? fail_at(&r, extra, "a second document begins here") : read_document(&r, option, context);
      yaml_document_delete(&second);
    }
    yaml_document_delete(&document);
  }
  yaml_parser_delete(&parser);
  fclose(file);
  return status;
}
