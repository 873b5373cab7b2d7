// One YAML document, from a file or from text, and what readers of it share.
#pragma once

#include "runtime/base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <yaml.h>

typedef struct fsdp_yaml_source {
  const char *path; // of the file; with `text`, what messages call it
  const char *text; // NULL: the file's contents
  const char *what; // the file is expected to be: "a YAML file of options"
  fsdp_status bad;  // status of what is wrong with its contents
} fsdp_yaml_source;

// Is given the document, whose root is never NULL; what it returns is returned.
typedef fsdp_status (*fsdp_yaml_visitor)(void *context, yaml_document_t *document, fsdp_error *error);

// Parses the whole source, then visits its one document; an empty source is not visited. FSDP_ERR_INPUT if
// the file cannot be opened; `bad`, with the line, if it is not YAML or has a second document.
fsdp_status fsdp_yaml_visit(const fsdp_yaml_source *source, fsdp_yaml_visitor visitor, void *context,
                            fsdp_error *error);

// From 1.
int fsdp_yaml_line(const yaml_node_t *node);
// A scalar's text. libyaml gives the length beside it: one with a NUL inside is no scalar to us.
const char *fsdp_yaml_text(const yaml_node_t *node);
bool fsdp_yaml_is_scalar(const yaml_node_t *node);
// Whether it is `~`, `null` or nothing, without quotes.
bool fsdp_yaml_is_null(const yaml_node_t *node);
// The whole number that a scalar is. False: it is none, or does not fit.
bool fsdp_yaml_integer(const yaml_node_t *node, int64_t *number);

// The earlier key of the mapping `root` with the text of `pair`'s, or NULL; up to there all are scalars.
const yaml_node_t *fsdp_yaml_earlier_key(yaml_document_t *document, const yaml_node_t *root,
                                         const yaml_node_pair_t *pair);
