#include "launcher/cli/yaml_options.h"

#include "launcher/cli/yaml_document.h"
#include "runtime/base/check.h"

#include <stdlib.h>
#include <string.h>

typedef struct reader {
  const char *path;
  fsdp_yaml_option option;
  void *context;
  yaml_document_t *document;
  fsdp_error *error;
} reader;

static fsdp_status fail_at(const reader *r, const yaml_node_t *node, const char *what) {
  return fsdp_fail(r->error, FSDP_ERR_OPTION,
                   "%s:%d: %s; write one `name: value` per line, or `name: [a, b]`", r->path,
                   fsdp_yaml_line(node), what);
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
    if (!fsdp_yaml_is_scalar(node) || strchr(fsdp_yaml_text(node), ',')) {
      fail_at(r, node, "a list's item must be a single value without a comma");
      free(joined);
      return NULL;
    }
    size_t added = strlen(fsdp_yaml_text(node));
    joined = fsdp_realloc(joined, length + added + 2);
    if (length) joined[length++] = ',';
    memcpy(joined + length, fsdp_yaml_text(node), added + 1);
    length += added;
  }
  return joined;
}

static fsdp_status check_new(const reader *r, const yaml_node_t *root, const yaml_node_pair_t *pair) {
  const yaml_node_t *key = yaml_document_get_node(r->document, pair->key);
  const yaml_node_t *earlier = fsdp_yaml_earlier_key(r->document, root, pair);
  if (!earlier) return FSDP_OK;
  return fsdp_fail(r->error, FSDP_ERR_OPTION,
                   "%s:%d: \"%.100s\" is already set in line %d; remove one of them", r->path,
                   fsdp_yaml_line(key), fsdp_yaml_text(key), fsdp_yaml_line(earlier));
}

static fsdp_status read_pair(const reader *r, const yaml_node_t *root, const yaml_node_pair_t *pair) {
  const yaml_node_t *key = yaml_document_get_node(r->document, pair->key);
  const yaml_node_t *value = yaml_document_get_node(r->document, pair->value);
  if (!fsdp_yaml_is_scalar(key) || !*fsdp_yaml_text(key))
    return fail_at(r, key, "an option's name must be a single word");
  fsdp_status status = check_new(r, root, pair);
  if (status) return status;
  const char *name = fsdp_yaml_text(key);
  if (fsdp_yaml_is_scalar(value))
    return r->option(r->context, name, fsdp_yaml_is_null(value) ? "" : fsdp_yaml_text(value),
                     fsdp_yaml_line(key), r->error);
  if (value->type != YAML_SEQUENCE_NODE)
    return fail_at(r, value, "an option's value must be a single value or a list of them");
  char *joined = join_items(r, value);
  if (!joined) return FSDP_ERR_OPTION;
  status = r->option(r->context, name, joined, fsdp_yaml_line(key), r->error);
  free(joined);
  return status;
}

static fsdp_status read_document(void *context, yaml_document_t *document, fsdp_error *error) {
  reader *r = context;
  const yaml_node_t *root = yaml_document_get_root_node(document);
  fsdp_status status = FSDP_OK;
  r->document = document;
  r->error = error;
  if (root->type != YAML_MAPPING_NODE) return fail_at(r, root, "the file is not a list of options");
  const yaml_node_pair_t *end = root->data.mapping.pairs.top;
  for (const yaml_node_pair_t *pair = root->data.mapping.pairs.start; pair < end && !status; pair++)
    status = read_pair(r, root, pair);
  return status;
}

fsdp_status fsdp_yaml_read(const char *path, fsdp_yaml_option option, void *context, fsdp_error *error) {
  const fsdp_yaml_source source = {.path = path, .what = "a YAML file of options", .bad = FSDP_ERR_OPTION};
  reader r = {.path = path, .option = option, .context = context};
  return fsdp_yaml_visit(&source, read_document, &r, error);
}
