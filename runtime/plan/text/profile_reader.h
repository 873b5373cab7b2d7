// The parts of reading a device profile: words, numbers, curves, mappings and lists of rows. profile_text.c
// reads the whole.
#pragma once

#include "runtime/plan/text/profile_keys.h"
#include "runtime/plan/text/yaml_document.h"

#define FSDP_PROFILE_BASES_MAX   8
#define FSDP_PROFILE_PLACE_BYTES 200

// The path of a file without links and dots, which the caller frees, or NULL: there is none.
typedef char *fsdp_profile_find(const char *path);

typedef struct fsdp_profile_reader {
  fsdp_device_profile *profile;
  char kernel_places[2][FSDP_PROFILE_PLACE_BYTES]; // file and line of each kernel to use, by its number
  char *places[FSDP_PROFILE_BASES_MAX]; // of the files being read: each is the base of the one before it
  int depth;
  fsdp_profile_find *find;         // NULL: shipped profiles alone are known
  fsdp_yaml_visit_function *visit; // of files
  yaml_document_t *document;
  fsdp_error *error;
} fsdp_profile_reader;

// The document's node of this index.
const yaml_node_t *fsdp_profile_node(const fsdp_profile_reader *r, int index);

// FSDP_ERR_INPUT, with file and line.
fsdp_status fsdp_profile_fail_at(const fsdp_profile_reader *r, const yaml_node_t *node, const char *format,
                                 ...) __attribute__((format(printf, 3, 4)));

// The index of a key of a mapping among its `fields`, none of which is found twice: *seen, at first 0, has
// those found (bits).
fsdp_status fsdp_profile_read_key(const fsdp_profile_reader *r, const yaml_node_t *key,
                                  const fsdp_profile_field *mapping, unsigned *seen, int *index);

// Some of a mapping's fields, but all of those that are required, into `out`. `node` is a mapping.
fsdp_status fsdp_profile_read_fields(fsdp_profile_reader *r, const yaml_node_t *node,
                                     const fsdp_profile_field *mapping, void *out);
