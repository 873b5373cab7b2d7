#include "launcher/report/memory_profile.h"

#include "runtime/base/check.h"

#include <stdlib.h>

fsdp_memory_profile fsdp_memory_profile_create(const fsdp_plan *plan, const char *model_name) {
  const fsdp_program *program = plan->program;
  fsdp_memory_profile profile = {
      .plan = plan, .model_name = model_name, .position_count = program->instr_count};
  for (int i = 0; i < program->section_count; i++) {
    const fsdp_section *section = &program->sections[i];
    if (section->kind < FSDP_SECTION_EVALUATION) profile.position_count = section->end;
  }
  for (int space = 0; space < FSDP_SPACE_COUNT; space++)
    profile.bytes[space] = fsdp_memory_live(program, (fsdp_space)space, true);
  return profile;
}

void fsdp_memory_profile_destroy(fsdp_memory_profile *profile) {
  for (int space = 0; space < FSDP_SPACE_COUNT; space++) free(profile->bytes[space]);
}

int fsdp_memory_profile_phases(const fsdp_memory_profile *profile,
                               fsdp_memory_phase out[2 * FSDP_MAX_SECTIONS]) {
  const fsdp_program *program = profile->plan->program;
  int count = 0;
  for (int i = 0; i < program->section_count; i++) {
    const fsdp_section *section = &program->sections[i];
    if (section->begin >= profile->position_count) continue;
    if (section->kind == FSDP_SECTION_UPDATE) {
      out[count++] = (fsdp_memory_phase){"update", section->begin, section->end, 1};
      continue;
    }
    int times = section->kind == FSDP_SECTION_MIDDLE ? program->micro_batches - 2 : 1;
    int backward = fsdp_program_backward_begin(program, section);
    if (backward > section->begin)
      out[count++] = (fsdp_memory_phase){"forward", section->begin, backward, times};
    if (backward < section->end)
      out[count++] = (fsdp_memory_phase){"backward", backward, section->end, times};
  }
  return count;
}
