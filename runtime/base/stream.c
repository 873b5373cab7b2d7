#include "runtime/base/stream.h"

#include "runtime/base/check.h"

const char *fsdp_stream_name(fsdp_stream stream) {
  static const char *const names[] = {"compute", "gather", "reduce", "h2d",     "d2h",
                                      "save",    "load",   "tensor", "context", "host"};
  FSDP_CHECK((unsigned)stream < FSDP_STREAM_COUNT, "stream %d", (int)stream);
  return names[stream];
}
