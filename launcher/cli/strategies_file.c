#include "launcher/cli/strategies_file.h"

#include "launcher/cli/yaml_document.h"
#include "runtime/base/check.h"

#include <stdlib.h>
#include <string.h>

typedef struct reader {
  fsdp_given_strategies *out;
  yaml_document_t *document;
  fsdp_error *error;
} reader;

static fsdp_status fail_at(const reader *r, const yaml_node_t *node, const char *what) {
  return fsdp_fail(r->error, FSDP_ERR_INPUT,
                   "%s:%d: %s; a strategy is a list of slice counts for each input, as in `fc1: [[2, 1], [1, "
                   "4]]`, and an empty one for an input without dimensions",
                   r->out->place, fsdp_yaml_line(node), what);
}

static fsdp_status read_list(const reader *r, const yaml_node_t *node, fsdp_given_strategy *line) {
  if (node->type != YAML_SEQUENCE_NODE) return fail_at(r, node, "an input's entry is not a list");
  int list = line->list_count++, beyond = 0;
  int *count = list < FSDP_OPERATOR_LISTS ? &line->entry_count[list] : &beyond;
  for (const yaml_node_item_t *item = node->data.sequence.items.start; item < node->data.sequence.items.top;
       item++) {
    const yaml_node_t *entry = yaml_document_get_node(r->document, *item);
    int64_t number;
    if (!fsdp_yaml_integer(entry, &number) || number < 0 || number > FSDP_MESH_RANKS_MAX)
      return fail_at(r, entry, "a count is not a whole number");
    if (list < FSDP_OPERATOR_LISTS && *count < FSDP_MAX_DIMS) line->counts[list][*count] = (int)number;
    ++*count;
  }
  return FSDP_OK;
}

static fsdp_status read_line(const reader *r, const yaml_node_t *root, const yaml_node_pair_t *pair,
                             fsdp_given_strategy *line) {
  const yaml_node_t *key = yaml_document_get_node(r->document, pair->key);
  const yaml_node_t *value = yaml_document_get_node(r->document, pair->value);
  fsdp_status status = FSDP_OK;
  if (!fsdp_yaml_is_scalar(key)) return fail_at(r, key, "a name is not a single word");
  const yaml_node_t *earlier = fsdp_yaml_earlier_key(r->document, root, pair);
  if (earlier)
    return fsdp_fail(r->error, FSDP_ERR_INPUT,
                     "%s:%d: \"%.100s\" has a strategy in line %d already; remove one of them", r->out->place,
                     fsdp_yaml_line(key), fsdp_yaml_text(key), fsdp_yaml_line(earlier));
  *line = (fsdp_given_strategy){0};
  snprintf(line->name, sizeof line->name, "%s", fsdp_yaml_text(key));
  snprintf(line->place, sizeof line->place, "%.140s:%d", r->out->place, fsdp_yaml_line(key));
  if (value->type != YAML_SEQUENCE_NODE) return fail_at(r, value, "the value is not a list");
  for (const yaml_node_item_t *item = value->data.sequence.items.start;
       item < value->data.sequence.items.top && !status; item++)
    status = read_list(r, yaml_document_get_node(r->document, *item), line);
  return status;
}

static fsdp_status read_document(void *context, yaml_document_t *document, fsdp_error *error) {
  reader *r = context;
  const yaml_node_t *root = yaml_document_get_root_node(document);
  fsdp_status status = FSDP_OK;
  r->document = document;
  r->error = error;
  if (root->type != YAML_MAPPING_NODE) return fail_at(r, root, "not a list of strategies");
  const yaml_node_pair_t *begin = root->data.mapping.pairs.start, *end = root->data.mapping.pairs.top;
  r->out->items = fsdp_alloc_zeroed((size_t)(end - begin) + 1, sizeof *r->out->items);
  for (const yaml_node_pair_t *pair = begin; pair < end && !status; pair++)
    status = read_line(r, root, pair, &r->out->items[r->out->count++]);
  return status;
}

fsdp_status fsdp_strategies_read(const fsdp_options *options, fsdp_given_strategies **strategies,
                                 fsdp_error *error) {
  *strategies = NULL;
  if (!options->op_strategies) return FSDP_OK;
  fsdp_given_strategies *out = *strategies = fsdp_alloc_zeroed(1, sizeof *out);
  reader r = {.out = out};
  snprintf(out->place, sizeof out->place, "%.140s", options->op_strategies);
  const fsdp_yaml_source source = {
      .path = options->op_strategies, .what = "a YAML file of strategies", .bad = FSDP_ERR_INPUT};
  return fsdp_yaml_visit(&source, read_document, &r, error);
}

void fsdp_strategies_destroy(fsdp_given_strategies *strategies) {
  if (!strategies) return;
  free(strategies->items);
  free(strategies);
}
