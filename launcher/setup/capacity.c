#include "launcher/setup/capacity.h"

#include "runtime/base/size.h"
#include "runtime/base/text.h"
#include "runtime/plan/search/remedies.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// ---- What fits

bool fsdp_capacity_fits(const fsdp_plan *plan, const fsdp_limits *limits) {
  int64_t needed[FSDP_SPACE_COUNT];
  fsdp_need_of(plan, needed);
  return fsdp_excess_of(&limits->memory, needed, NULL) == 0;
}

// ---- What would help

static fsdp_remedy find_remedy(const fsdp_plan *plan, const fsdp_limits *limits) {
  fsdp_evaluator evaluator = {
      .profile = limits->profile, .ranks_per_node = limits->ranks_per_machine, .allowed = limits->memory};
  const fsdp_remedy remedy = fsdp_remedy_of(&plan->config, &evaluator);
  fsdp_evaluator_release(&evaluator);
  return remedy;
}

// " (2.10 GB of it beside the arena: ...)", or nothing.
static const char *print_reserve(const fsdp_plan *plan, char out[128]) {
  int64_t reserve = fsdp_plan_reserve_bytes(plan);
  out[0] = 0;
  if (reserve > 0) {
    snprintf(out, 128, " (%s of it beside the arena, for CUDA's modules, cuBLASLt and NCCL%s)",
             fsdp_print_bytes(reserve).text, fsdp_plan_reserve_estimated(plan) ? "; not measured" : "");
  }
  return out;
}

fsdp_status fsdp_capacity_check(const fsdp_plan *plan, const fsdp_limits *limits, fsdp_error *error) {
  static const char *const places[] = {[FSDP_SPACE_DEVICE] = "the device",
                                       [FSDP_SPACE_HOST] = "the host",
                                       [FSDP_SPACE_COUNT] = "device and host together"};
  int64_t needs[FSDP_SPACE_COUNT];
  if (fsdp_capacity_fits(plan, limits)) return FSDP_OK;
  fsdp_need_of(plan, needs);
  int over = 0; // the first space that takes more than it may; FSDP_SPACE_COUNT: both together do
  while (over < FSDP_SPACE_COUNT && !(limits->memory.bytes[over] && needs[over] > limits->memory.bytes[over]))
    over++;
  const bool shared = over == FSDP_SPACE_COUNT, on_device = over == FSDP_SPACE_DEVICE;
  const char *place = shared ? limits->shared_place : limits->place[over];
  const int64_t need = shared ? needs[FSDP_SPACE_DEVICE] + needs[FSDP_SPACE_HOST] : needs[over];
  const int64_t limit = shared ? limits->memory.shared_bytes : limits->memory.bytes[over];
  char what[512], reserve[128];
  snprintf(what, sizeof what, "a rank needs %s bytes (%s) on %s%s, but %s allows %s bytes (%s)",
           fsdp_print_int(need).text, fsdp_print_bytes(need).text, places[over],
           on_device ? print_reserve(plan, reserve) : "", place, fsdp_print_int(limit).text,
           fsdp_print_bytes(limit).text);
  const bool by_option = !shared && place[0] == '-'; // a limit that a user can raise
  const bool on_gpu = on_device && plan->config.backend->device == FSDP_OP_CUDA;
  const bool several = limits->ranks_per_machine > 1;
  const char *more = by_option ? "raise that limit"
                     : on_gpu  ? "use GPUs with more memory" // each rank has its own
                     : several ? "use fewer ranks per machine, or a larger machine"
                               : "lower --seq-length or --batch-size, or use a larger machine";
  const fsdp_remedy remedy = find_remedy(plan, limits);
  const fsdp_number_text device = fsdp_print_bytes(remedy.bytes[FSDP_SPACE_DEVICE]);
  const fsdp_number_text host = fsdp_print_bytes(remedy.bytes[FSDP_SPACE_HOST]);
  if (remedy.is_enough) {
    return fsdp_fail(error, FSDP_ERR_CAPACITY,
                     "%s: %s, or add %s, which needs %s on the device and %s on the host", what, more,
                     remedy.change, device.text, host.text);
  }
  return fsdp_fail(error, FSDP_ERR_CAPACITY,
                   "%s: %s, or use more ranks or a smaller model; the least found here, with %s, is %s on "
                   "the device and %s "
                   "on the host",
                   what, more, *remedy.change ? remedy.change : "these options", device.text, host.text);
}

// ---- The machine

// The number in a control group's file, or INT64_MAX if there is none ("max", no such file).
static int64_t read_limit(const char *path) {
  FILE *file = fopen(path, "r");
  if (!file) return INT64_MAX;
  int64_t value;
  bool found = fscanf(file, "%" SCNd64, &value) == 1 && value > 0;
  fclose(file);
  return found ? value : INT64_MAX;
}

// The least limit of this process's control group (version 2) and those above it.
static int64_t group_limit(void) {
  char line[1024], path[1200];
  int64_t least = INT64_MAX;
  FILE *file = fopen("/proc/self/cgroup", "r");
  if (!file) return least;
  while (fgets(line, sizeof line, file)) {
    if (strncmp(line, "0::", 3) != 0) continue;
    line[strcspn(line, "\n")] = 0;
    for (char *group = line + 3;;) {
      snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", strcmp(group, "/") == 0 ? "" : group);
      least = fsdp_min_i64(least, read_limit(path));
      char *slash = strrchr(group, '/');
      if (!slash || !*group || strcmp(group, "/") == 0) break;
      *slash = 0;
    }
  }
  fclose(file);
  return least;
}

int64_t fsdp_capacity_machine_bytes(void) {
  int64_t installed = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
  int64_t version1 = read_limit("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  return fsdp_min_i64(installed, fsdp_min_i64(group_limit(), version1));
}
