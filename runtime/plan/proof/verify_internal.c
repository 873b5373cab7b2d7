#include "runtime/plan/proof/verify_internal.h"

#include <stdarg.h>

const char *verify_describe(const verifier *v, int position, char out[VERIFY_WHO_BYTES]) {
  const fsdp_instr *instr = &v->program->instrs[position];
  snprintf(out, VERIFY_WHO_BYTES, "%s on stream %s at %d", fsdp_instr_name(instr),
           fsdp_stream_name(instr->stream), position);
  return out;
}

bool verify_reject(const verifier *v, fsdp_violation found, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  *v->violation = found;
  vsnprintf(v->violation->message, sizeof v->violation->message, format, arguments);
  va_end(arguments);
  return false;
}
