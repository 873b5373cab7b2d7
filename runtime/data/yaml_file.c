#include "runtime/data/yaml_file.h"

#include "runtime/base/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

static fsdp_status fail_read(const fsdp_yaml_source *source, const char *done, fsdp_error *error) {
  const int reason = errno;
  char give[256];
  snprintf(give, sizeof give, "give %s", source->what);
  return fsdp_fail(error, FSDP_ERR_INPUT, "%s: cannot be %s (%s); %s", source->path, done, strerror(reason),
                   fsdp_read_remedy(reason, give));
}

fsdp_status fsdp_yaml_visit_file(const fsdp_yaml_source *source, fsdp_yaml_visitor visitor, void *context,
                                 fsdp_error *error) {
  enum { BYTES_MAX = 64 << 20 };
  int64_t bytes;
  int descriptor = open(source->path, O_RDONLY | O_CLOEXEC); // a file may be a pipe
  if (descriptor < 0) return fail_read(source, "opened", error);
  char *read = fsdp_read_rest(descriptor, BYTES_MAX, &bytes);
  fsdp_status status = read ? FSDP_OK : fail_read(source, "read", error); // a folder cannot be
  close(descriptor);
  if (!status && bytes > BYTES_MAX)
    status = fsdp_fail(error, source->bad, "%s: more than 64 MiB; give %s", source->path, source->what);
  if (!status) {
    fsdp_yaml_source text = *source;
    text.text = read;
    text.text_bytes = (size_t)bytes;
    status = fsdp_yaml_visit(&text, visitor, context, error);
  }
  free(read);
  return status;
}
