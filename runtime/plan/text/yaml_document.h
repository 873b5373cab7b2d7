// One YAML document as text, and what readers of it share.
#pragma once

#include "runtime/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <yaml.h>

typedef struct fsdp_yaml_source {
  const char *path; // what messages call it: the file that the text is from, or the option
  const char *text;
  size_t text_bytes;
  const char *what; // it is expected to be: "a YAML file of options"
  fsdp_status bad;  // status of what is wrong with its contents
} fsdp_yaml_source;

// Is given the document, whose root is never NULL; what it returns is returned.
typedef fsdp_status (*fsdp_yaml_visitor)(void *context, yaml_document_t *document, fsdp_error *error);

// Parses the whole source, then visits its one document; an empty source is not visited. `bad`, with the
// line, if it is not YAML, is nested more than 64 levels deep, or has a second document.
fsdp_status fsdp_yaml_visit(const fsdp_yaml_source *source, fsdp_yaml_visitor visitor, void *context,
                            fsdp_error *error);

// Of text, or of a file (runtime/data/yaml_file.h).
typedef fsdp_status fsdp_yaml_visit_function(const fsdp_yaml_source *source, fsdp_yaml_visitor visitor,
                                             void *context, fsdp_error *error);

// From 1.
int fsdp_yaml_line(const yaml_node_t *node);
// A scalar's text. libyaml gives the length beside it: one with a NUL inside is no scalar to us.
const char *fsdp_yaml_text(const yaml_node_t *node);
bool fsdp_yaml_is_scalar(const yaml_node_t *node);
// Whether it is `~`, `null` or nothing, without quotes.
bool fsdp_yaml_is_null(const yaml_node_t *node);
// The whole number that a scalar is. False: it is none, or does not fit.
bool fsdp_yaml_integer(const yaml_node_t *node, int64_t *number);

// Item i of a list of the document; NULL behind the last.
const yaml_node_t *fsdp_yaml_item(yaml_document_t *document, const yaml_node_t *list, int i);

// What readers of a document share.
typedef struct fsdp_yaml_reader {
  const char *path; // what messages begin with
  const char *form; // and end with: how it is to be written; NULL: nothing
  fsdp_status bad;
  yaml_document_t *document;
  fsdp_error *error;
} fsdp_yaml_reader;

// Returns `bad`, with `path:line: "value": what; form`, the value if it is a scalar.
fsdp_status fsdp_yaml_fail_at(const fsdp_yaml_reader *reader, const yaml_node_t *node, const char *what);

// Is given a pair; a failure ends the visit. The key is a scalar, which may be empty.
typedef fsdp_status (*fsdp_yaml_pair)(void *context, const yaml_node_t *key, const yaml_node_t *value);

// Visits the pairs of a mapping in order. `bad` for another node (`not_one` says so), for a key that is no
// scalar, and for one that an earlier pair has.
fsdp_status fsdp_yaml_each_pair(const fsdp_yaml_reader *reader, const yaml_node_t *mapping,
                                const char *not_one, fsdp_yaml_pair visit, void *context);
