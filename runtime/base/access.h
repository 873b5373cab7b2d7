// How bytes are accessed, and the recorder to which a traced run reports each range that it accesses.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fsdp_access {
  FSDP_READ = 1,
  FSDP_WRITE = 2,                       // overwritten
  FSDP_UPDATE = FSDP_READ | FSDP_WRITE, // both: accumulated, or changed in place
} fsdp_access;

// Implemented by an access trace (runtime/exec/access_trace.h) and by tests.
typedef struct fsdp_access_recorder fsdp_access_recorder;

struct fsdp_access_recorder {
  void (*range)(fsdp_access_recorder *self, const void *address, int64_t bytes, fsdp_access access);
};

// Reports `bytes` bytes starting at `address`. Does nothing without a recorder or without bytes.
static inline void fsdp_access_report(fsdp_access_recorder *recorder, const void *address, int64_t bytes,
                                      fsdp_access access) {
  if (recorder && bytes > 0) recorder->range(recorder, address, bytes, access);
}

#ifdef __cplusplus
}
#endif
