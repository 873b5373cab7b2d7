// Plans one training step, with no device and no ranks: plan_step [PRESET] [RANKS]
#include "models/model.h"
#include "runtime/plan/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
  fsdp_error error;
  fsdp_plan *plan;
  fsdp_plan_config config = {
      .batch = 1,
      .seq = 1024,
      .micro_batches = 1,
      .prefetch = 1,
      .strategy = FSDP_FULL,
      .wrap = {.kind = FSDP_WRAP_BLOCK},
      .mesh = fsdp_mesh_of(1, argc > 2 ? atoi(argv[2]) : 8),
      .param_dtype = FSDP_BF16,
      .reduce_dtype = FSDP_F32,
      .master_dtype = FSDP_F32,
      .moment_dtype = FSDP_F32,
      .grad_clip = 1,
      .hyper = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8F},
      .backend = fsdp_plan_backend_cuda(),
  };
  if (fsdp_model_preset(argc > 1 ? argv[1] : "llama2-7b", &config.model, &error) != FSDP_OK ||
      fsdp_plan_create(&config, &plan, &error) != FSDP_OK) {
    fprintf(stderr, "plan_step: %s\n", error.message);
    return (int)error.status;
  }
  const fsdp_memory_space_report *memory = &plan->memory.space[FSDP_SPACE_DEVICE];
  char owner[256];
  fsdp_plan_instr_name(plan, memory->peak_position, owner, sizeof owner);
  printf("%d units, %d instructions\n", plan->units->count, plan->program->instr_count);
  printf("valley %" PRId64 " bytes, peak %" PRId64 " at instruction %d, %s\n", memory->valley_bytes,
         memory->peak_bytes, memory->peak_position, owner);
  fsdp_plan_destroy(plan);
  return 0;
}
