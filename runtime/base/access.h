// How bytes are accessed, and the recorder to which a traced run reports each range that it touches.
#pragma once

#include <stdint.h>

typedef enum fsdp_access {
  FSDP_READ = 1,
  FSDP_WRITE = 2, // overwritten
  FSDP_UPDATE = 3 // both: accumulated, or changed in place
} fsdp_access;

typedef struct fsdp_touch fsdp_touch;

struct fsdp_touch {
  void (*range)(fsdp_touch *self, const void *address, int64_t bytes, int access);
};
