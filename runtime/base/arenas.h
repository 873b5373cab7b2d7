// The arenas: what a device has allocated, one block of memory per space, and the files through which peers
// may read it.
#pragma once

#include "runtime/base/stream.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct fsdp_arenas {
  unsigned char *memory[FSDP_SPACE_COUNT]; // 64-byte aligned at least; NULL if it has no bytes
  int64_t bytes[FSDP_SPACE_COUNT];
  int file[FSDP_SPACE_COUNT]; // descriptor whose offset x is arena byte x, or -1 (not shared)
} fsdp_arenas;

// True if [address, address + bytes) lies in one arena; its space and offset.
bool fsdp_arenas_locate(const fsdp_arenas *arenas, const void *address, int64_t bytes, fsdp_space *space,
                        int64_t *offset);
