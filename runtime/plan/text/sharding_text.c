#include "runtime/plan/text/sharding_text.h"

#include "runtime/base/check.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
  fsdp_sharding *sharding;
  fsdp_shard_rule *rule; // a document that is one spec is read into it; NULL: a file of rules, with lines
  fsdp_yaml_reader yaml; // its path is the file's, or the option's
} reader;

// ---- Specs

static void print_place(const reader *r, const yaml_node_t *node, char *out, size_t bytes) {
  if (r->rule)
    snprintf(out, bytes, "%.150s", r->yaml.path);
  else
    snprintf(out, bytes, "%.140s:%d", r->yaml.path, fsdp_yaml_line(node));
}

static fsdp_status fail_at(const reader *r, const yaml_node_t *node, const char *what) {
  char place[160];
  print_place(r, node, place, sizeof place);
  return fsdp_fail(r->yaml.error, r->yaml.bad,
                   "%s: %s; a spec is a list with an entry for each dimension: null, an axis, or a list of "
                   "axes, as in [[data, fsdp], null]",
                   place, what);
}

static fsdp_status read_axis(const reader *r, const yaml_node_t *node, fsdp_rule_dim *dim) {
  if (node->type == YAML_SEQUENCE_NODE) return fail_at(r, node, "a list of axes holds another list");
  if (!fsdp_yaml_is_scalar(node) || fsdp_yaml_is_null(node))
    return fail_at(r, node, "a list of axes holds something else than names");
  if (dim->count == FSDP_MESH_AXES_MAX)
    return fail_at(r, node, "a list of axes holds more of them than a mesh can have");
  snprintf(dim->axes[dim->count++], sizeof dim->axes[0], "%s", fsdp_yaml_text(node));
  return FSDP_OK;
}

static fsdp_status read_dim(const reader *r, const yaml_node_t *node, fsdp_rule_dim *dim) {
  fsdp_status status = FSDP_OK;
  if (fsdp_yaml_is_scalar(node)) return fsdp_yaml_is_null(node) ? FSDP_OK : read_axis(r, node, dim);
  if (node->type != YAML_SEQUENCE_NODE) return fail_at(r, node, "an entry is neither an axis nor a list");
  const yaml_node_t *item;
  for (int i = 0; !status && (item = fsdp_yaml_item(r->yaml.document, node, i)); i++)
    status = read_axis(r, item, dim);
  return status;
}

static fsdp_status read_spec(const reader *r, const yaml_node_t *node, fsdp_shard_rule *rule) {
  if (node->type != YAML_SEQUENCE_NODE) return fail_at(r, node, "the value is not a list");
  fsdp_rule_dim beyond; // of dimensions that no tensor has
  const yaml_node_t *item;
  fsdp_status status = FSDP_OK;
  for (rule->dims = 0; !status && (item = fsdp_yaml_item(r->yaml.document, node, rule->dims)); rule->dims++) {
    fsdp_rule_dim *dim = rule->dims < FSDP_MAX_DIMS ? &rule->dim[rule->dims] : &beyond;
    *dim = (fsdp_rule_dim){0};
    status = read_dim(r, item, dim);
  }
  return status;
}

// "model.layers.*[0]" is output 0 of model.layers.*.
static void read_name(const char *text, size_t length, fsdp_shard_rule *rule) {
  rule->output = -1;
  size_t digits = 0;
  while (digits + 2 < length && isdigit((unsigned char)text[length - 2 - digits])) digits++;
  bool indexed = digits > 0 && digits < 6 && text[length - 1] == ']' && text[length - 2 - digits] == '[';
  if (indexed) {
    rule->output = (int)strtol(text + length - 1 - digits, NULL, 10);
    length -= digits + 2;
  }
  snprintf(rule->name, sizeof rule->name, "%.*s", (int)length, text);
}

// ---- Rules

static fsdp_shard_rule *add_rule(fsdp_sharding *s) {
  s->rules = fsdp_realloc(s->rules, (size_t)(s->rule_count + 1) * sizeof *s->rules);
  s->rules[s->rule_count] = (fsdp_shard_rule){.output = -1};
  return &s->rules[s->rule_count++];
}

static fsdp_status read_pair(void *context, const yaml_node_t *key, const yaml_node_t *value) {
  reader *r = context;
  fsdp_shard_rule *rule = add_rule(r->sharding);
  read_name(fsdp_yaml_text(key), strlen(fsdp_yaml_text(key)), rule);
  print_place(r, key, rule->place, sizeof rule->place);
  return read_spec(r, value, rule);
}

static fsdp_status read_document(void *context, yaml_document_t *document, fsdp_error *error) {
  reader *r = context;
  const yaml_node_t *root = yaml_document_get_root_node(document);
  r->yaml.document = document;
  r->yaml.error = error;
  if (r->rule) return read_spec(r, root, r->rule);
  return fsdp_yaml_each_pair(&r->yaml, root, "not a list of rules", read_pair, r);
}

fsdp_status fsdp_sharding_read_rules(fsdp_sharding *sharding, const fsdp_yaml_source *source,
                                     fsdp_yaml_visit_function *visit, fsdp_error *error) {
  const fsdp_yaml_reader yaml = {
      .path = source->path, .form = "write one `name: [axes]` per line", .bad = source->bad};
  reader r = {.sharding = sharding, .yaml = yaml};
  return visit(source, read_document, &r, error);
}

bool fsdp_sharding_find_preset(const char *name, fsdp_sharding_preset *preset) {
  static const char *const names[] = {
      [FSDP_SHARDING_FSDP] = "fsdp", [FSDP_SHARDING_FSDP_TP] = "fsdp-tp", [FSDP_SHARDING_FSDPV2] = "fsdpv2"};
  for (int i = FSDP_SHARDING_FSDP; i <= FSDP_SHARDING_FSDPV2; i++) {
    if (strcmp(name, names[i]) != 0) continue;
    *preset = (fsdp_sharding_preset)i;
    return true;
  }
  return false;
}

// ---- One rule

fsdp_status fsdp_sharding_read_assignment(fsdp_sharding *s, const char *text, const char *place,
                                          fsdp_error *error) {
  text += strspn(text, " \n");
  const char *equals = strchr(text, '=');
  if (!equals)
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "--shard '%s' (%s): write NAME=SPEC, as in --shard 'lm_head.weight=[fsdp, null]'", text,
                     place);
  fsdp_shard_rule rule = {.output = -1};
  read_name(text, (size_t)(equals - text), &rule);
  snprintf(rule.place, sizeof rule.place, "--shard (%.140s)", place);
  reader r = {.sharding = s, .rule = &rule, .yaml = {.path = rule.place, .bad = FSDP_ERR_OPTION}};
  const fsdp_yaml_source source = {.path = rule.place,
                                   .text = equals + 1,
                                   .text_bytes = strlen(equals + 1),
                                   .what =
                                       "a list with an entry for each dimension, as in [[data, fsdp], null]",
                                   .bad = FSDP_ERR_OPTION};
  fsdp_status status = fsdp_yaml_visit(&source, read_document, &r, error);
  if (status) return status;
  if (rule.dims == 0)
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "--shard '%s' (%s): the spec is empty; write an entry for each dimension, as in "
                     "[fsdp, null]",
                     text, place);
  int at = 0;
  while (at < s->rule_count && (strcmp(s->rules[at].name, rule.name) || s->rules[at].output != rule.output))
    at++;
  if (at == s->rule_count) add_rule(s);
  s->rules[at] = rule;
  return FSDP_OK;
}

void fsdp_sharding_destroy(fsdp_sharding *sharding) {
  if (!sharding) return;
  free(sharding->rules);
  free(sharding);
}
