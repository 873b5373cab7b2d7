#include "runtime/plan/text/yaml_document.h"

#include "runtime/base/check.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

int fsdp_yaml_line(const yaml_node_t *node) {
  return (int)node->start_mark.line + 1;
}

const char *fsdp_yaml_text(const yaml_node_t *node) {
  return (const char *)node->data.scalar.value;
}

bool fsdp_yaml_is_scalar(const yaml_node_t *node) {
  return node->type == YAML_SCALAR_NODE && strlen(fsdp_yaml_text(node)) == node->data.scalar.length;
}

bool fsdp_yaml_is_null(const yaml_node_t *node) {
  const char *text = fsdp_yaml_text(node);
  bool plain = node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
  return plain && (!strcmp(text, "~") || !strcmp(text, "null") || !*text);
}

bool fsdp_yaml_integer(const yaml_node_t *node, int64_t *number) {
  if (!fsdp_yaml_is_scalar(node) || !*fsdp_yaml_text(node)) return false;
  char *end;
  errno = 0;
  *number = strtoll(fsdp_yaml_text(node), &end, 10);
  return !*end && !errno;
}

const yaml_node_t *fsdp_yaml_item(yaml_document_t *document, const yaml_node_t *list, int i) {
  const yaml_node_item_t *item = list->data.sequence.items.start + i;
  return item < list->data.sequence.items.top ? yaml_document_get_node(document, *item) : NULL;
}

// ---- Mappings

fsdp_status fsdp_yaml_fail_at(const fsdp_yaml_reader *reader, const yaml_node_t *node, const char *what) {
  char value[80] = "";
  if (node->type == YAML_SCALAR_NODE) snprintf(value, sizeof value, "\"%.60s\": ", fsdp_yaml_text(node));
  return fsdp_fail(reader->error, reader->bad, "%.140s:%d: %s%s%s%s", reader->path, fsdp_yaml_line(node),
                   value, what, reader->form ? "; " : "", reader->form ? reader->form : "");
}

static int compare_keys(const void *a, const void *b) {
  return strcmp(fsdp_yaml_text(a), fsdp_yaml_text(b));
}

// Adds a key to the tree of those seen.
static fsdp_status take_key(const fsdp_yaml_reader *reader, const yaml_node_t *key, void **seen) {
  char what[80];
  if (!fsdp_yaml_is_scalar(key)) return fsdp_yaml_fail_at(reader, key, "a name is not a single word");
  yaml_node_t *const *earlier = tfind(key, seen, compare_keys);
  if (earlier) {
    snprintf(what, sizeof what, "the name is in line %d already: remove one of them",
             fsdp_yaml_line(*earlier));
    return fsdp_yaml_fail_at(reader, key, what);
  }
  const void *added = tsearch(key, seen, compare_keys);
  FSDP_NEED_MEMORY(added, "the names of a YAML file");
  return FSDP_OK;
}

static void keep_node(void *node) {
  (void)node; // the document's
}

fsdp_status fsdp_yaml_each_pair(const fsdp_yaml_reader *reader, const yaml_node_t *mapping,
                                const char *not_one, fsdp_yaml_pair visit, void *context) {
  if (mapping->type != YAML_MAPPING_NODE) return fsdp_yaml_fail_at(reader, mapping, not_one);
  const yaml_node_pair_t *end = mapping->data.mapping.pairs.top;
  fsdp_status status = FSDP_OK;
  void *seen = NULL;
  for (const yaml_node_pair_t *pair = mapping->data.mapping.pairs.start; pair < end && !status; pair++) {
    const yaml_node_t *key = yaml_document_get_node(reader->document, pair->key);
    status = take_key(reader, key, &seen);
    if (!status) status = visit(context, key, yaml_document_get_node(reader->document, pair->value));
  }
  tdestroy(seen, keep_node);
  return status;
}

// ---- Documents

static fsdp_status fail_parse(const fsdp_yaml_source *source, const yaml_parser_t *parser,
                              fsdp_error *error) {
  return fsdp_fail(
      error, source->bad,
      "%s:%zu: not valid YAML: %s; correct it there, or put quotes around a value with *, & or brackets",
      source->path, parser->problem_mark.line + 1, parser->problem ? parser->problem : "cannot be read");
}

static void begin_parser(yaml_parser_t *parser, const fsdp_yaml_source *source) {
  int made = yaml_parser_initialize(parser);
  FSDP_NEED_MEMORY(made, "a YAML parser");
  yaml_parser_set_input_string(parser, (const unsigned char *)source->text, source->text_bytes);
}

// No file that programs read is deep, and libyaml's time grows with the square of the depth.
static fsdp_status check_depth(const fsdp_yaml_source *source, fsdp_error *error) {
  enum { DEPTH_MAX = 64 };
  yaml_parser_t parser;
  fsdp_status status = FSDP_OK;
  int depth = 0;
  begin_parser(&parser, source);
  for (bool ended = false; !ended && !status;) {
    yaml_event_t event;
    if (!yaml_parser_parse(&parser, &event)) {
      status = fail_parse(source, &parser, error);
      break;
    }
    depth += event.type == YAML_SEQUENCE_START_EVENT || event.type == YAML_MAPPING_START_EVENT;
    depth -= event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT;
    ended = event.type == YAML_STREAM_END_EVENT;
    if (depth > DEPTH_MAX)
      status = fsdp_fail(error, source->bad, "%s:%zu: nested more than %d levels deep; give %s", source->path,
                         event.start_mark.line + 1, DEPTH_MAX, source->what);
    yaml_event_delete(&event);
  }
  yaml_parser_delete(&parser);
  return status;
}

static fsdp_status visit(yaml_parser_t *parser, const fsdp_yaml_source *source, fsdp_yaml_visitor visitor,
                         void *context, fsdp_error *error) {
  yaml_document_t document, second;
  if (!yaml_parser_load(parser, &document)) return fail_parse(source, parser, error);
  fsdp_status status = FSDP_OK;
  // The whole source is parsed before anything in it counts.
  if (!yaml_parser_load(parser, &second)) {
    status = fail_parse(source, parser, error);
  } else {
    const yaml_node_t *extra = yaml_document_get_root_node(&second);
    if (extra)
      status = fsdp_fail(error, source->bad, "%s:%d: a second document begins here; keep one of them",
                         source->path, fsdp_yaml_line(extra));
    else if (yaml_document_get_root_node(&document))
      status = visitor(context, &document, error);
    yaml_document_delete(&second);
  }
  yaml_document_delete(&document);
  return status;
}

fsdp_status fsdp_yaml_visit(const fsdp_yaml_source *source, fsdp_yaml_visitor visitor, void *context,
                            fsdp_error *error) {
  yaml_parser_t parser;
  fsdp_status status = check_depth(source, error);
  if (status) return status;
  begin_parser(&parser, source);
  status = visit(&parser, source, visitor, context, error);
  yaml_parser_delete(&parser);
  return status;
}
