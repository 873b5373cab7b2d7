#include "launcher/programs/probe_machine.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int bind_ranks(void *context, int ranks) {
  const fsdp_probe_machine_config *config = context;
  fsdp_binding binding;
  const fsdp_binding_config place = {
      .bind = config->bind, .gpu_bus = config->gpu->present ? config->gpu->bus : NULL, .local_ranks = ranks};
  fsdp_binding_bind(config->world, &place, &binding);
  return binding.core_count;
}

// The processor's name as the system knows it; "cpu" if it does not.
static void read_cpu_name(char *out, size_t out_bytes) {
  FILE *in = fopen("/proc/cpuinfo", "r");
  char line[256];
  snprintf(out, out_bytes, "cpu");
  while (in && fgets(line, sizeof line, in)) {
    const char *value = strstr(line, ": ");
    if (strncmp(line, "model name", 10) != 0 || !value) continue;
    snprintf(out, out_bytes, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
    break;
  }
  if (in) fclose(in);
}

fsdp_status fsdp_probe_machine(const fsdp_probe_machine_config *config, fsdp_device_profile *profile,
                               fsdp_error *error) {
  fsdp_binding whole;
  fsdp_binding_bind(config->world, &(fsdp_binding_config){.bind = false}, &whole);
  const fsdp_probe_config probe = {.world = config->world,
                                   .gpu = config->gpu,
                                   .seconds = config->seconds,
                                   .cores = whole.node_cores,
                                   .bind = bind_ranks,
                                   .bind_context = (void *)(uintptr_t)config};
  fsdp_status status = fsdp_probe_run(&probe, profile, error);
  if (status != FSDP_OK) return status;
  const int64_t machine_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  int64_t memory_bytes = machine_bytes;
  if (config->gpu->present) {
    profile->host_memory_bytes = (double)fsdp_world_min(config->world, machine_bytes);
    snprintf(profile->name, sizeof profile->name, "%s", config->gpu->name);
    memory_bytes = config->gpu->total_bytes;
    profile->processors = (int)fsdp_world_min(config->world, config->gpu->processors);
    for (int d = 0; d < FSDP_DTYPE_COUNT; d++)
      profile->peak_flops[d] = fsdp_gpu_peak_flops(config->gpu->name, (fsdp_dtype)d);
  } else {
    char name[FSDP_PROFILE_NAME_BYTES - 16];
    read_cpu_name(name, sizeof name);
    snprintf(profile->name, sizeof profile->name, "%s, %d cores", name, profile->processors);
  }
  // Where machines differ, the least counts, by rank 0's name.
  profile->memory_bytes = (double)fsdp_world_min(config->world, memory_bytes);
  fsdp_world_broadcast(config->world, profile->peak_flops, (int64_t)sizeof profile->peak_flops);
  fsdp_world_broadcast(config->world, profile->name, (int64_t)sizeof profile->name);
  return FSDP_OK;
}
