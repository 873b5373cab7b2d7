#include "launcher/setup/capacity.h"

#include "runtime/base/size.h"
#include "runtime/base/text.h"
#include "runtime/plan/saving_choice.h"
#include "runtime/plan/search/simulate.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SAID_BYTES   (FSDP_SAVING_TEXT_BYTES + 32)
#define ADVICE_BYTES (SAID_BYTES * 2)

// ---- What fits

typedef struct need {
  int64_t bytes[FSDP_SPACE_COUNT];
  double step_s; // with a profile; else 0
} need;

static need need_of(const fsdp_plan *plan) {
  need result = {.step_s = 0};
  for (int i = 0; i < FSDP_SPACE_COUNT; i++) result.bytes[i] = plan->memory.space[i].arena_bytes;
  result.bytes[FSDP_SPACE_DEVICE] += fsdp_plan_reserve_bytes(plan);
  return result;
}

// How far the need is above the limits: 0 if it fits.
static int64_t excess(const need *n, const fsdp_limits *limits) {
  int64_t most = 0, sum = 0;
  for (int i = 0; i < FSDP_SPACE_COUNT; i++) {
    sum += n->bytes[i];
    if (limits->bytes[i]) most = fsdp_max_i64(most, n->bytes[i] - limits->bytes[i]);
  }
  if (limits->shared_bytes) most = fsdp_max_i64(most, sum - limits->shared_bytes);
  return most;
}

bool fsdp_capacity_fits(const fsdp_plan *plan, const fsdp_limits *limits) {
  need needs = need_of(plan);
  return excess(&needs, limits) == 0;
}

static bool fits(const fsdp_plan *plan, void *limits) {
  return fsdp_capacity_fits(plan, limits);
}

// ---- What would help

// A change of the configuration that may need less memory. `apply` changes `config` and says how a user asks
// for it, or returns false if the configuration has it already. Without it, ranks move to `axis`; without
// either, rules of `fate` are chosen.
typedef struct remedy {
  bool (*apply)(fsdp_plan_config *config, char *text, size_t bytes);
  const char *axis;
  fsdp_fate fate;
  bool changes_results;
} remedy;

static bool say(char *text, size_t bytes, const char *option) {
  snprintf(text, bytes, "%s", option);
  return true;
}

static bool wrap_block(fsdp_plan_config *config, char *text, size_t bytes) {
  if (config->wrap.kind == FSDP_WRAP_BLOCK) return false;
  config->wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_BLOCK};
  return say(text, bytes, "--wrap block");
}

// The cheapest rules of one fate with which the plan fits; if it does not with any, those that save most.
static bool choose(fsdp_plan_config *config, const fsdp_limits *limits, fsdp_fate fate, char *text,
                   size_t bytes) {
  fsdp_saving_choice choice = {.recompute = fate == FSDP_FATE_RECOMPUTE,
                               .offload = fate == FSDP_FATE_OFFLOAD,
                               .fits = fits,
                               .context = (void *)(uintptr_t)limits};
  fsdp_saving before = config->saving;
  char rules[FSDP_SAVING_TEXT_BYTES];
  bool found;
  for (int i = 0; i < before.count; i++)
    if (before.rules[i].fate == fate) return false;
  if (fsdp_saving_choose(&choice, config, &found, NULL) != FSDP_OK) return false;
  if (!found && fate == FSDP_FATE_RECOMPUTE && !before.count) config->saving = fsdp_saving_of_blocks();
  fsdp_saving_print(&config->saving, fate, rules);
  snprintf(text, bytes, "--%s %s", fate == FSDP_FATE_RECOMPUTE ? "recompute" : "offload-activations", rules);
  return config->saving.count > before.count;
}

static bool reduce_each(fsdp_plan_config *config, char *text, size_t bytes) {
  if (config->accumulate == FSDP_ACCUMULATE_REDUCE || config->micro_batches == 1) return false;
  config->accumulate = FSDP_ACCUMULATE_REDUCE;
  return say(text, bytes, "--accumulate reduce");
}

static bool shard(fsdp_plan_config *config, char *text, size_t bytes) {
  fsdp_mesh *mesh = &config->mesh;
  int data = fsdp_mesh_size(mesh, FSDP_AXIS_DATA), fsdp = fsdp_mesh_size(mesh, FSDP_AXIS_FSDP);
  if (config->strategy == FSDP_FULL || fsdp_mesh_ranks(mesh) == 1) return false;
  // What is local by zero1's default is not under full.
  const char *also = "";
  if (config->strategy == FSDP_ZERO1 && config->accumulate == FSDP_ACCUMULATE_LOCAL) {
    config->accumulate = FSDP_ACCUMULATE_REDUCE;
    if (config->micro_batches > 1) also = " --accumulate reduce";
  }
  config->strategy = FSDP_FULL;
  snprintf(text, bytes, "--strategy full%s", also);
  // Rules say themselves what lies over data.
  if (config->sharding || config->op_strategies || data == 1) return true;
  char sizes[FSDP_MESH_TEXT_BYTES];
  fsdp_mesh_resize(mesh, FSDP_AXIS_DATA, 1);
  fsdp_mesh_resize(mesh, FSDP_AXIS_FSDP, data * fsdp);
  snprintf(text, bytes, "--strategy full%s --mesh %s", also, fsdp_mesh_print(mesh, ",", sizes));
  return true;
}

static bool offload(fsdp_plan_config *config, char *text, size_t bytes) {
  if (config->cpu_offload) return false;
  config->cpu_offload = true;
  return say(text, bytes, "--cpu-offload on");
}

static bool no_prefetch(fsdp_plan_config *config, char *text, size_t bytes) {
  if (config->prefetch == 0) return false;
  config->prefetch = 0;
  return say(text, bytes, "--prefetch 0");
}

// Half the sequences of a micro-batch and twice as many of them, so that the step stays the same.
static bool halve_batch(fsdp_plan_config *config, char *text, size_t bytes) {
  if (config->batch % 2 || config->micro_batches > 1 << 20) return false;
  config->batch /= 2;
  config->micro_batches *= 2;
  snprintf(text, bytes, "--batch-size %" PRId64 " --grad-accum %d", config->batch, config->micro_batches);
  return true;
}

static bool halve_sequence(fsdp_plan_config *config, char *text, size_t bytes) {
  if (config->seq < 128) return false;
  config->seq /= 2;
  snprintf(text, bytes, "--seq-length %" PRId64, config->seq);
  return true;
}

// Twice the ranks on tensor or context and half of those that have sequences of their own, which take twice
// as many micro-batches, so that the step stays the same. Tensor parallelism stays inside a machine.
static bool divide_layers(fsdp_plan_config *config, const fsdp_limits *limits, const char *axis, char *text,
                          size_t bytes) {
  fsdp_mesh *mesh = &config->mesh;
  char sizes[FSDP_MESH_TEXT_BYTES];
  const int size = 2 * fsdp_mesh_size(mesh, axis);
  const int data = fsdp_mesh_size(mesh, FSDP_AXIS_DATA), shards = fsdp_mesh_size(mesh, FSDP_AXIS_FSDP);
  const bool tensor = strcmp(axis, FSDP_AXIS_TENSOR) == 0;
  if (config->sharding || config->op_strategies || config->micro_batches > 1 << 20) return false;
  if ((shards % 2 && data % 2) || (tensor && limits->ranks_per_machine % size)) return false;
  if (tensor && size > config->model.num_heads) return false;
  if (shards % 2)
    fsdp_mesh_resize(mesh, FSDP_AXIS_DATA, data / 2);
  else
    fsdp_mesh_resize(mesh, FSDP_AXIS_FSDP, shards / 2);
  fsdp_mesh_resize(mesh, axis, size);
  config->micro_batches = 2 * config->micro_batches;
  fsdp_mesh_print(mesh, ",", sizes);
  snprintf(text, bytes, "--mesh %s --grad-accum %d", sizes, config->micro_batches);
  return true;
}

static bool low_precision_state(fsdp_plan_config *config, char *text, size_t bytes) {
  if (config->master_dtype == FSDP_BF16 && config->moment_dtype == FSDP_BF16) return false;
  config->master_dtype = config->moment_dtype = FSDP_BF16;
  return say(text, bytes, "--master-dtype bf16 --moment-dtype bf16");
}

static bool low_precision_compute(fsdp_plan_config *config, char *text, size_t bytes) {
  if (config->param_dtype == FSDP_BF16) return false;
  config->param_dtype = FSDP_BF16;
  return say(text, bytes, "--param-dtype bf16");
}

static bool low_precision_gradients(fsdp_plan_config *config, char *text, size_t bytes) {
  if (config->param_dtype != FSDP_BF16 || config->reduce_dtype == FSDP_BF16) return false;
  config->reduce_dtype = FSDP_BF16;
  return say(text, bytes, "--reduce-dtype bf16");
}

// In the order in which one would rather have them: those that change no result first.
static const remedy remedies[] = {{.apply = wrap_block},
                                  {.apply = no_prefetch},
                                  {.fate = FSDP_FATE_RECOMPUTE},
                                  {.apply = reduce_each},
                                  {.apply = shard},
                                  {.fate = FSDP_FATE_OFFLOAD},
                                  {.apply = halve_batch},
                                  {.apply = offload},
                                  {.axis = FSDP_AXIS_CONTEXT},
                                  {.axis = FSDP_AXIS_TENSOR},
                                  {.apply = low_precision_compute, .changes_results = true},
                                  {.apply = low_precision_state, .changes_results = true},
                                  {.apply = low_precision_gradients, .changes_results = true},
                                  {.apply = halve_sequence, .changes_results = true}};
enum { REMEDY_COUNT = sizeof remedies / sizeof *remedies };

// Seconds of a step on the machine of the limits; 0 if there is none.
static double price_of(const fsdp_plan *plan, const fsdp_limits *limits) {
  fsdp_pricing pricing;
  fsdp_step_price price;
  if (!limits->profile ||
      fsdp_pricing_create(plan, limits->profile, limits->ranks_per_machine, &pricing, NULL) != FSDP_OK)
    return 0;
  fsdp_simulation *simulation = fsdp_simulation_create(&pricing);
  fsdp_simulation_run(simulation, &price);
  const double seconds = price.step_s;
  fsdp_step_price_release(&price);
  fsdp_simulation_destroy(simulation);
  return seconds;
}

// Plans `config`; false if it makes no plan.
static bool try_config(const fsdp_plan_config *config, const fsdp_limits *limits, need *result) {
  fsdp_plan *plan;
  fsdp_error ignored;
  if (fsdp_plan_create(config, &plan, &ignored) != FSDP_OK) return false;
  *result = need_of(plan);
  if (excess(result, limits) == 0) result->step_s = price_of(plan, limits);
  fsdp_plan_destroy(plan);
  return true;
}

// Applies a remedy, halvings repeated until it fits; `text` is what to type. False if it does not apply.
static bool apply(int index, const fsdp_limits *limits, fsdp_plan_config *config, need *result, char *text,
                  size_t bytes) {
  const remedy *r = &remedies[index];
  bool repeats = r->apply == halve_batch || r->apply == halve_sequence || r->axis;
  bool applied = false;
  do {
    fsdp_plan_config changed = *config;
    char said[SAID_BYTES];
    need least;
    bool changes = r->apply  ? r->apply(&changed, said, sizeof said)
                   : r->axis ? divide_layers(&changed, limits, r->axis, said, sizeof said)
                             : choose(&changed, limits, r->fate, said, sizeof said);
    if (!changes || !try_config(&changed, limits, &least)) return applied;
    *config = changed;
    *result = least;
    snprintf(text, bytes, "%s", said);
    applied = true;
  } while (repeats && excess(result, limits) > 0);
  return applied;
}

// One change that is enough: the first in order, or of those that change no result the fastest.
static bool find_single(const fsdp_plan *plan, const fsdp_limits *limits, char text[ADVICE_BYTES],
                        need *result) {
  bool found = false;
  for (int i = 0; i < REMEDY_COUNT && !(found && remedies[i].changes_results); i++) {
    fsdp_plan_config config = plan->config;
    char said[ADVICE_BYTES];
    need after;
    if (!apply(i, limits, &config, &after, said, sizeof said) || excess(&after, limits) > 0) continue;
    if (found && after.step_s >= result->step_s) continue;
    found = true;
    *result = after;
    memcpy(text, said, sizeof said);
    if (after.step_s == 0) return true;
  }
  return found;
}

// Looks for one change that is enough, then for several together. False if nothing found is; `text` and
// `result` are then the least that was found.
static bool find_remedy(const fsdp_plan *plan, const fsdp_limits *limits, char text[ADVICE_BYTES],
                        need *result) {
  if (find_single(plan, limits, text, result)) return true;
  fsdp_plan_config config = plan->config;
  *result = need_of(plan);
  text[0] = 0;
  for (int i = 0; i < REMEDY_COUNT; i++) {
    fsdp_plan_config changed = config;
    char said[SAID_BYTES];
    need after;
    if (!apply(i, limits, &changed, &after, said, sizeof said) ||
        excess(&after, limits) >= excess(result, limits))
      continue;
    config = changed;
    *result = after;
    size_t used = strlen(text);
    if (used + SAID_BYTES >= ADVICE_BYTES) break;
    snprintf(text + used, ADVICE_BYTES - used, "%s%s", used ? " " : "", said);
    if (excess(result, limits) == 0) return true;
  }
  return false;
}

// "1,234 bytes (1.23 kB)".
static const char *print_both(int64_t bytes, char out[96]) {
  char whole[48], human[24];
  snprintf(out, 96, "%s bytes (%s)", fsdp_print_int(bytes, whole, sizeof whole),
           fsdp_print_bytes(bytes, human, sizeof human));
  return out;
}

// " (2.10 GB of it beside the arena: ...)", or nothing.
static const char *print_reserve(const fsdp_plan *plan, char out[128]) {
  int64_t reserve = fsdp_plan_reserve_bytes(plan);
  char bytes[24];
  out[0] = 0;
  if (reserve > 0) {
    snprintf(out, 128, " (%s of it beside the arena, for CUDA's modules, cuBLASLt and NCCL; not measured)",
             fsdp_print_bytes(reserve, bytes, sizeof bytes));
  }
  return out;
}

fsdp_status fsdp_capacity_check(const fsdp_plan *plan, const fsdp_limits *limits, fsdp_error *error) {
  need needs = need_of(plan), helped = needs;
  if (excess(&needs, limits) == 0) return FSDP_OK;
  bool by_option = true; // a limit that a user can raise
  bool on_gpu = false;
  char what[512], needed[96], reserve[128], limit[96], advice[ADVICE_BYTES], device[24], host[24];
  if (limits->bytes[FSDP_SPACE_DEVICE] && needs.bytes[FSDP_SPACE_DEVICE] > limits->bytes[FSDP_SPACE_DEVICE]) {
    snprintf(what, sizeof what, "a rank needs %s on the device%s, but %s allows %s",
             print_both(needs.bytes[FSDP_SPACE_DEVICE], needed), print_reserve(plan, reserve),
             limits->place[FSDP_SPACE_DEVICE], print_both(limits->bytes[FSDP_SPACE_DEVICE], limit));
    by_option = limits->place[FSDP_SPACE_DEVICE][0] == '-';
    on_gpu = plan->config.backend->device == FSDP_OP_CUDA;
  } else if (limits->bytes[FSDP_SPACE_HOST] &&
             needs.bytes[FSDP_SPACE_HOST] > limits->bytes[FSDP_SPACE_HOST]) {
    snprintf(what, sizeof what, "a rank needs %s on the host, but %s allows %s",
             print_both(needs.bytes[FSDP_SPACE_HOST], needed), limits->place[FSDP_SPACE_HOST],
             print_both(limits->bytes[FSDP_SPACE_HOST], limit));
    by_option = limits->place[FSDP_SPACE_HOST][0] == '-';
  } else {
    by_option = false;
    snprintf(what, sizeof what, "a rank needs %s on device and host together, but %s allows %s",
             print_both(needs.bytes[FSDP_SPACE_DEVICE] + needs.bytes[FSDP_SPACE_HOST], needed),
             limits->shared_place, print_both(limits->shared_bytes, limit));
  }
  bool several = limits->ranks_per_machine > 1;
  const char *more = by_option ? "raise that limit"
                     : on_gpu  ? "use GPUs with more memory" // each rank has its own
                     : several ? "use fewer ranks per machine, or a larger machine"
                               : "lower --seq-length or --batch-size, or use a larger machine";
  bool found = find_remedy(plan, limits, advice, &helped);
  fsdp_print_bytes(helped.bytes[FSDP_SPACE_DEVICE], device, sizeof device);
  fsdp_print_bytes(helped.bytes[FSDP_SPACE_HOST], host, sizeof host);
  if (found) {
    return fsdp_fail(error, FSDP_ERR_CAPACITY,
                     "%s: %s, or add %s, which needs %s on the device and %s on the host", what, more, advice,
                     device, host);
  }
  return fsdp_fail(error, FSDP_ERR_CAPACITY,
                   "%s: %s, or use more ranks or a smaller model; the least found here, with %s, is %s on "
                   "the device and %s "
                   "on the host",
                   what, more, *advice ? advice : "these options", device, host);
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
