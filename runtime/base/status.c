#include "runtime/base/status.h"

#include <stdarg.h>
#include <stdio.h>

fsdp_status fsdp_fail(fsdp_error *error, fsdp_status status, const char *format, ...) {
  if (error) {
    error->status = status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    for (char *c = error->message; *c; c++)
      if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
  }
  return status;
}
