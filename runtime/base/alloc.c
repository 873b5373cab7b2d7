// What happens where the machine, or a limit of this process, has no more memory or threads.
#include "runtime/base/check.h"
#include "runtime/base/job.h"

#include <stdarg.h>
#include <string.h>

#define WHAT_BYTES 512

void fsdp_memory_exhausted(const char *format, ...) {
  char what[WHAT_BYTES];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  fsdp_job_exhausted("out of host memory for %s: raise the limit (ulimit -v, the container's, the batch "
                     "system's), free memory, or start fewer ranks on this machine",
                     what);
}

void fsdp_thread_exhausted(int failure, const char *format, ...) {
  char what[WHAT_BYTES];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  fsdp_job_exhausted("%s could not be started (%s): raise the limit of threads (ulimit -u, the container's "
                     "pids) or of memory (ulimit -v), or use fewer with --threads N or fewer ranks",
                     what, strerror(failure));
}

void *fsdp_alloc(size_t bytes) {
  void *memory = malloc(bytes ? bytes : 1);
  FSDP_NEED_MEMORY(memory, "%zu bytes", bytes);
  return memory;
}

void *fsdp_alloc_zeroed(size_t count, size_t item_bytes) {
  void *memory = calloc(count ? count : 1, item_bytes ? item_bytes : 1);
  FSDP_NEED_MEMORY(memory, "%zu times %zu bytes", count, item_bytes);
  return memory;
}

void *fsdp_realloc(void *memory, size_t bytes) {
  void *grown = realloc(memory, bytes ? bytes : 1);
  FSDP_NEED_MEMORY(grown, "%zu bytes", bytes);
  return grown;
}

char *fsdp_strdup(const char *text, const char *what) {
  char *copy = strdup(text);
  FSDP_NEED_MEMORY(copy, "%s", what);
  return copy;
}

void *fsdp_grow(void *items, int count, int *capacity, size_t item_bytes) {
  if (count <= *capacity) return items;
  const int doubled = *capacity < 32 ? 64 : 2 * *capacity;
  *capacity = count > doubled ? count : doubled;
  return fsdp_realloc(items, (size_t)*capacity * item_bytes);
}
