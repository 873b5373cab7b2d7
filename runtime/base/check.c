#include "runtime/base/check.h"

#include <stdarg.h>

static char last_message[1300];

const char *fsdp_check_message(void) {
  return last_message;
}

void fsdp_check_failed(const char *file, int line, const char *condition, const char *format, ...) {
  char reason[1100];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reason, sizeof reason, format, arguments);
  va_end(arguments);
  snprintf(last_message, sizeof last_message, "broken invariant at %s:%d: %.100s: %s", file, line, condition,
           reason);
  fprintf(stderr, "fsdp: broken invariant at %s:%d: %s: %s\n", file, line, condition, reason);
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
