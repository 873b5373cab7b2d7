#include "runtime/exec/device_config.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <stdlib.h>
#include <string.h>

// A queue this long keeps every stream busy; the launching thread sleeps when it is so far ahead.
static const int queue_capacity = 1024;
// Of a stream; more than a full queue of the host stream ever waits for.
static const int64_t event_capacity_max = 1 << 16;
// Casts are bound by memory: a few threads saturate it, and more would take cores from the gemms.
static const int cast_threads_max = 4;

void fsdp_device_mark_awaited(const fsdp_program *program, bool *awaited) {
  memset(awaited, 0, (size_t)program->instr_count * sizeof *awaited);
  for (int i = 0; i < program->instr_count; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    for (int w = 0; w < instr->wait_count; w++) {
      int position = program->waits[instr->first_wait + w].position;
      if (program->instrs[position].stream != instr->stream) awaited[position] = true;
    }
  }
  // The end of a section on each stream is also waited for, before its records are reused.
  for (int s = 0; s < program->section_count; s++) {
    bool seen[FSDP_STREAM_COUNT] = {false};
    for (int i = program->sections[s].end - 1; i >= program->sections[s].begin; i--) {
      if (!seen[program->instrs[i].stream]) awaited[i] = true;
      seen[program->instrs[i].stream] = true;
    }
  }
}

// At most two steps and an evaluation are under way; three leave a margin.
static void count_events(const fsdp_program *program, fsdp_device_config *config) {
  bool *awaited = fsdp_alloc((size_t)program->instr_count * sizeof *awaited);
  int64_t counts[FSDP_STREAM_COUNT] = {0}, most = 0;
  fsdp_device_mark_awaited(program, awaited);
  for (int s = 0; s < program->section_count; s++) {
    const fsdp_section *section = &program->sections[s];
    int64_t runs = section->kind == FSDP_SECTION_MIDDLE ? program->micro_batches : 1;
    for (int i = section->begin; i < section->end; i++) {
      if (awaited[i]) counts[program->instrs[i].stream] += 3 * runs;
    }
  }
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) most = fsdp_max_i64(most, counts[s]);
  config->event_capacity = (int)fsdp_min_i64(event_capacity_max, most);
  free(awaited);
}

void fsdp_device_configure(const fsdp_program *program, int threads, fsdp_device_config *config) {
  config->queue_capacity = queue_capacity;
  config->poisoned = getenv("FSDP_POISON_ARENAS") != NULL;
  for (int s = 0; s < FSDP_SPACE_COUNT; s++) config->arena_bytes[s] = program->arena_bytes[s];
  for (int i = 0; i < program->instr_count; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    int wanted = 1;
    if (instr->kind == FSDP_INSTR_OP) {
      config->poisoned = config->poisoned || fsdp_instr_is_poison(instr);
      bool whole = instr->stream == FSDP_STREAM_COMPUTE || instr->stream == FSDP_STREAM_HOST;
      wanted = whole ? threads : (int)fsdp_min_i64(threads, cast_threads_max);
    }
    int *have = &config->stream_threads[instr->stream];
    *have = (int)fsdp_max_i64(*have, wanted);
  }
  count_events(program, config);
}
