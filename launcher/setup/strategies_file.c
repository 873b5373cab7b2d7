#include "launcher/setup/strategies_file.h"

#include "runtime/base/check.h"
#include "runtime/data/yaml_file.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

// Every operator is looked up in every line.
enum { LINES_MAX = 10000 };

typedef struct reader {
  fsdp_given_strategies *out;
  fsdp_yaml_reader yaml;
} reader;

static fsdp_status read_count(const reader *r, const yaml_node_t *node, int *count) {
  int64_t number;
  if (!fsdp_yaml_integer(node, &number))
    return fsdp_yaml_fail_at(&r->yaml, node, "a count is not a whole number");
  if (number < 1)
    return fsdp_yaml_fail_at(&r->yaml, node, "a count is below 1: use 1 for a dimension that is whole");
  if (number > FSDP_MESH_RANKS_MAX)
    return fsdp_yaml_fail_at(&r->yaml, node, "a count is above any number of ranks");
  *count = (int)number;
  return FSDP_OK;
}

// A whole number without a sign, from *at on, which moves behind it. False: there is none, it is 0, or it is
// too large.
static bool read_digits(const char **at, int *number) {
  int64_t value = 0;
  const char *begin = *at;
  for (; isdigit((unsigned char)**at) && value <= FSDP_MESH_RANKS_MAX; ++*at) value = 10 * value + **at - '0';
  *number = (int)value;
  return *at > begin && value >= 1 && value <= FSDP_MESH_RANKS_MAX;
}

// "2@4+2@1": their product is *count.
static fsdp_status read_groups(const reader *r, const yaml_node_t *node, fsdp_slice_group *groups,
                               int *group_count, int *count) {
  int64_t product = 1;
  for (const char *at = fsdp_yaml_text(node); at; at = *at ? at + 1 : NULL) {
    fsdp_slice_group *group = &groups[*group_count];
    if (*group_count == FSDP_SLICE_GROUPS_MAX || product > FSDP_MESH_RANKS_MAX)
      return fsdp_yaml_fail_at(&r->yaml, node, "a count is above any number of ranks");
    bool is_count = read_digits(&at, &group->count) && *at++ == '@' && read_digits(&at, &group->stride);
    if (!is_count || (*at && *at != '+'))
      return fsdp_yaml_fail_at(&r->yaml, node,
                               "neither a count nor counts and how many ranks apart, as in 4@1 or 2@4+2@1");
    product *= group->count;
    ++*group_count;
  }
  if (product > FSDP_MESH_RANKS_MAX)
    return fsdp_yaml_fail_at(&r->yaml, node, "a count is above any number of ranks");
  *count = (int)product;
  return FSDP_OK;
}

// Entry `entry` of list `list`, into the line if it has room for it.
static fsdp_status read_entry(const reader *r, const yaml_node_t *node, fsdp_given_strategy *line, int list,
                              int entry) {
  bool is_kept = list < FSDP_OPERATOR_LISTS && entry < FSDP_MAX_DIMS;
  fsdp_slice_group groups[FSDP_SLICE_GROUPS_MAX] = {{0}};
  int count = 1, group_count = 0;
  bool has_groups = fsdp_yaml_is_scalar(node) && strchr(fsdp_yaml_text(node), '@');
  fsdp_status status =
      has_groups ? read_groups(r, node, groups, &group_count, &count) : read_count(r, node, &count);
  if (status || !is_kept) return status;
  line->counts[list][entry] = count;
  line->group_count[list][entry] = group_count;
  memcpy(line->groups[list][entry], groups, sizeof groups);
  return FSDP_OK;
}

static fsdp_status read_list(const reader *r, const yaml_node_t *node, fsdp_given_strategy *line) {
  if (node->type != YAML_SEQUENCE_NODE)
    return fsdp_yaml_fail_at(&r->yaml, node, "an input's entry is not a list");
  int list = line->list_count++, beyond = 0;
  int *count = list < FSDP_OPERATOR_LISTS ? &line->entry_count[list] : &beyond;
  fsdp_status status = FSDP_OK;
  const yaml_node_t *item;
  for (int i = 0; !status && (item = fsdp_yaml_item(r->yaml.document, node, i)); i++) {
    status = read_entry(r, item, line, list, *count);
    ++*count;
  }
  return status;
}

static fsdp_status read_line(void *context, const yaml_node_t *key, const yaml_node_t *value) {
  reader *r = context;
  fsdp_given_strategies *out = r->out;
  if (out->count == LINES_MAX) return fsdp_yaml_fail_at(&r->yaml, key, "more lines than 10000");
  out->items = fsdp_realloc(out->items, (size_t)(out->count + 1) * sizeof *out->items);
  fsdp_given_strategy *line = &out->items[out->count++];
  *line = (fsdp_given_strategy){0};
  snprintf(line->name, sizeof line->name, "%s", fsdp_yaml_text(key));
  snprintf(line->place, sizeof line->place, "%.140s:%d", out->place, fsdp_yaml_line(key));
  if (value->type != YAML_SEQUENCE_NODE) return fsdp_yaml_fail_at(&r->yaml, value, "the value is not a list");
  fsdp_status status = FSDP_OK;
  const yaml_node_t *item;
  for (int i = 0; !status && (item = fsdp_yaml_item(r->yaml.document, value, i)); i++)
    status = read_list(r, item, line);
  return status;
}

static fsdp_status read_document(void *context, yaml_document_t *document, fsdp_error *error) {
  reader *r = context;
  r->yaml = (fsdp_yaml_reader){
      .path = r->out->place,
      .form = "a strategy is a list of slice counts for each input, as in `fc1: [[2, 1], [1, 4]]`, and an "
              "empty one for an input without dimensions",
      .bad = FSDP_ERR_INPUT,
      .document = document,
      .error = error};
  return fsdp_yaml_each_pair(&r->yaml, yaml_document_get_root_node(document), "not a list of strategies",
                             read_line, r);
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
  return fsdp_yaml_visit_file(&source, read_document, &r, error);
}

void fsdp_strategies_destroy(fsdp_given_strategies *strategies) {
  if (!strategies) return;
  free(strategies->items);
  free(strategies);
}
