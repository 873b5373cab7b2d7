#include "runtime/base/check.h"

#include <stdarg.h>

void fsdp_check_failed(const char *file, int line, const char *condition, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "fsdp: broken invariant at %s:%d: %s: ", file, line, condition);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  abort();
}

void *fsdp_alloc(size_t bytes) {
  void *memory = malloc(bytes ? bytes : 1);
  FSDP_CHECK(memory, "out of host memory for %zu bytes", bytes);
  return memory;
}

void *fsdp_alloc_zeroed(size_t count, size_t item_bytes) {
  void *memory = calloc(count ? count : 1, item_bytes ? item_bytes : 1);
  FSDP_CHECK(memory, "out of host memory for %zu x %zu bytes", count, item_bytes);
  return memory;
}

void *fsdp_realloc(void *memory, size_t bytes) {
  void *grown = realloc(memory, bytes ? bytes : 1);
  FSDP_CHECK(grown, "out of host memory for %zu bytes", bytes);
  return grown;
}
