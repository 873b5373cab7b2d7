#include "runtime/plan/proof/verify.h"

#include "runtime/plan/proof/verify_internal.h"

bool fsdp_verify(const fsdp_program *program, fsdp_violation *violation) {
  fsdp_violation ignored;
  const verifier v = {.program = program, .violation = violation ? violation : &ignored};
  return fsdp_verify_accesses(program, v.violation) && verify_launches(&v);
}

bool fsdp_verify_accesses(const fsdp_program *program, fsdp_violation *violation) {
  fsdp_violation ignored;
  verifier v = {.program = program, .violation = violation ? violation : &ignored};
  v.space_base[FSDP_SPACE_HOST] = program->arena_bytes[FSDP_SPACE_DEVICE];
  v.run_count = fsdp_program_seam_order(program, VERIFY_MIDDLES, v.order);
  for (int run = 0, step = 0; run < v.run_count; run++) {
    v.steps[run] = step;
    step += program->sections[v.order[run]].kind == FSDP_SECTION_UPDATE;
  }
  if (!verify_ranges(&v) || !verify_collectives(&v) || !verify_overlap(&v) || !verify_order(&v) ||
      !verify_data(&v))
    return false;
  *v.violation = (fsdp_violation){FSDP_VIOLATION_NONE, -1, -1, -1, -1, 0, ""};
  return true;
}
