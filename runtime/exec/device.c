#include "runtime/exec/device.h"

#include "runtime/base/size.h"

#include <string.h>

// A queue this long keeps every stream busy; the launching thread sleeps when it is so far ahead.
static const int queue_capacity = 1024;
// Casts are bound by memory: a few threads saturate it, and more would take cores from the matrix products.
static const int cast_threads_max = 4;

void fsdp_device_configure(const fsdp_program *program, int threads, fsdp_device_config *config) {
  bool shared = config->shared;
  memset(config, 0, sizeof *config);
  config->shared = shared;
  config->queue_capacity = queue_capacity;
  for (int s = 0; s < FSDP_SPACE_COUNT; s++) config->arena_bytes[s] = program->arena_bytes[s];
  for (int i = 0; i < program->instr_count; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    int wanted = 1;
    if (instr->kind == FSDP_INSTR_OP) {
      bool whole = instr->stream == FSDP_STREAM_COMPUTE || instr->stream == FSDP_STREAM_HOST;
      wanted = whole ? threads : (int)fsdp_min_i64(threads, cast_threads_max);
    }
    int *have = &config->stream_threads[instr->stream];
    *have = (int)fsdp_max_i64(*have, wanted);
  }
}

bool fsdp_device_locate(const fsdp_device *device, const void *address, int64_t bytes, fsdp_space *space,
                        int64_t *offset) {
  for (int s = 0; s < FSDP_SPACE_COUNT; s++) {
    // Compared as integers: the address may belong to neither arena.
    uintptr_t base = (uintptr_t)device->arena[s], at = (uintptr_t)address;
    if (!base || at < base || at - base > (uintptr_t)device->arena_bytes[s]) continue;
    if ((int64_t)(at - base) + bytes > device->arena_bytes[s]) continue;
    *space = (fsdp_space)s;
    *offset = (int64_t)(at - base);
    return true;
  }
  return false;
}
