#include "runtime/data/yaml_file.h"

#include "runtime/base/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct contents {
  char *bytes;
  size_t size;
} contents;

static fsdp_status fail_read(const fsdp_yaml_source *source, const char *done, fsdp_error *error) {
  return fsdp_fail(error, FSDP_ERR_INPUT, "%s: cannot be %s (%s); give %s", source->path, done,
                   strerror(errno), source->what);
}

// The caller frees out->bytes, also of a failure. A file may be a pipe.
static fsdp_status read_file(const fsdp_yaml_source *source, contents *out, fsdp_error *error) {
  enum { BYTES_MAX = 64 << 20, BYTES_FIRST = 1 << 16 };
  FILE *file = fopen(source->path, "rb");
  if (!file) return fail_read(source, "opened", error);
  size_t capacity = 0, got;
  do {
    if (out->size == capacity) {
      capacity = capacity ? 2 * capacity : BYTES_FIRST;
      out->bytes = fsdp_realloc(out->bytes, capacity);
    }
    got = fread(out->bytes + out->size, 1, capacity - out->size, file);
    out->size += got;
  } while (got && out->size <= BYTES_MAX);
  fsdp_status status = ferror(file) ? fail_read(source, "read", error) : FSDP_OK; // of a folder
  fclose(file);
  if (!status && out->size > BYTES_MAX)
    status = fsdp_fail(error, source->bad, "%s: more than 64 MiB; give %s", source->path, source->what);
  return status;
}

fsdp_status fsdp_yaml_visit_file(const fsdp_yaml_source *source, fsdp_yaml_visitor visitor, void *context,
                                 fsdp_error *error) {
  contents read = {0};
  fsdp_status status = read_file(source, &read, error);
  if (!status) {
    fsdp_yaml_source text = *source;
    text.text = read.bytes;
    text.text_bytes = read.size;
    status = fsdp_yaml_visit(&text, visitor, context, error);
  }
  free(read.bytes);
  return status;
}
