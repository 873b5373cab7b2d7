#include "launcher/programs/rank_gpu.h"

#include "launcher/report/device_line.h"
#include "runtime/exec/gpu_choice.h"

#include <stdio.h>

fsdp_status fsdp_rank_gpu_choose(fsdp_world *world, const fsdp_options *options, fsdp_gpu *gpu,
                                 char why_cpu[FSDP_WHY_CPU_BYTES], fsdp_error *error) {
  char chosen[256];
  *gpu = (fsdp_gpu){.present = false};
  snprintf(chosen, sizeof chosen, "--backend cpu (%s)", fsdp_options_place(options, "backend"));
  fsdp_device_line_why_cpu(options->backend == FSDP_BACKEND_CPU ? chosen : NULL, NULL, why_cpu,
                           FSDP_WHY_CPU_BYTES);
  if (options->backend == FSDP_BACKEND_CPU || !fsdp_gpu_is_built()) return FSDP_OK;
  fsdp_error reason;
  if (fsdp_gpu_choose(world, options->allow_shared_gpu, gpu, &reason) == FSDP_OK) return FSDP_OK;
  int64_t shown = fsdp_world_sum(world, gpu->shown);
  if (options->backend == FSDP_BACKEND_AUTO && shown == 0) {
    fsdp_device_line_why_cpu(NULL, reason.message, why_cpu, FSDP_WHY_CPU_BYTES);
    return FSDP_OK;
  }
  return fsdp_fail(error, reason.status, "--backend %s (%s): %.800s",
                   options->backend == FSDP_BACKEND_CUDA ? "cuda" : "auto",
                   fsdp_options_place(options, "backend"), reason.message);
}
