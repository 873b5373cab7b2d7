#include "runtime/base/stream.h"

#include "runtime/base/check.h"

const char *fsdp_stream_name(fsdp_stream stream) {
  static const char *const names[] = {"compute",  "gather", "reduce", "shard",  "h2d",     "d2h",
                                      "snapshot", "save",   "load",   "tensor", "context", "host"};
  FSDP_CHECK((unsigned)stream < FSDP_STREAM_COUNT, "stream %d", (int)stream);
  return names[stream];
}

bool fsdp_stream_communicates(fsdp_stream stream) {
  return stream == FSDP_STREAM_GATHER || stream == FSDP_STREAM_REDUCE || stream == FSDP_STREAM_TENSOR ||
         stream == FSDP_STREAM_CONTEXT;
}
