#include "runtime/base/arenas.h"

bool fsdp_arenas_locate(const fsdp_arenas *arenas, const void *address, int64_t bytes, fsdp_space *space,
                        int64_t *offset) {
  for (int s = 0; s < FSDP_SPACE_COUNT; s++) {
    // Compared as integers: the address may belong to neither arena.
    uintptr_t base = (uintptr_t)arenas->memory[s], at = (uintptr_t)address;
    if (!base || at < base || at - base > (uintptr_t)arenas->bytes[s]) continue;
    if ((int64_t)(at - base) + bytes > arenas->bytes[s]) continue;
    *space = (fsdp_space)s;
    *offset = (int64_t)(at - base);
    return true;
  }
  return false;
}
