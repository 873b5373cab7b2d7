#include "launcher/cli/yaml_document.h"

#include "runtime/base/check.h"

#include <errno.h>
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

const yaml_node_t *fsdp_yaml_earlier_key(yaml_document_t *document, const yaml_node_t *root,
                                         const yaml_node_pair_t *pair) {
  const yaml_node_t *key = yaml_document_get_node(document, pair->key);
  for (const yaml_node_pair_t *other = root->data.mapping.pairs.start; other < pair; other++) {
    const yaml_node_t *earlier = yaml_document_get_node(document, other->key);
    if (!strcmp(fsdp_yaml_text(earlier), fsdp_yaml_text(key))) return earlier;
  }
  return NULL;
}

static fsdp_status fail_parse(const fsdp_yaml_source *source, const yaml_parser_t *parser,
                              fsdp_error *error) {
  return fsdp_fail(
      error, source->bad,
      "%s:%zu: not valid YAML: %s; correct it there, or put quotes around a value with *, & or brackets",
      source->path, parser->problem_mark.line + 1, parser->problem ? parser->problem : "cannot be read");
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
  FILE *file = source->text ? NULL : fopen(source->path, "rb");
  if (!file && !source->text)
    return fsdp_fail(error, FSDP_ERR_INPUT, "%s: cannot be opened (%s); give %s", source->path,
                     strerror(errno), source->what);
  int made = yaml_parser_initialize(&parser);
  FSDP_CHECK(made, "out of host memory for a YAML parser");
  if (file)
    yaml_parser_set_input_file(&parser, file);
  else
    yaml_parser_set_input_string(&parser, (const unsigned char *)source->text, strlen(source->text));
  fsdp_status status = visit(&parser, source, visitor, context, error);
  yaml_parser_delete(&parser);
  if (file) fclose(file);
  return status;
}
