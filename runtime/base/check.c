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
