#include "launcher/report/report.h"

#include "launcher/report/activations.h"
#include "launcher/report/redistributions.h"
#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "runtime/plan/search/hints.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define LABEL_BYTES 256

// ---- Advice

void fsdp_report_hints(const fsdp_plan *plan, char out[2][FSDP_REPORT_HINT_BYTES]) {
  const fsdp_hints hints = fsdp_hints_of(plan);
  out[0][0] = out[1][0] = 0;
  if (hints.unit >= 0) {
    const fsdp_unit *unit = &plan->units->units[hints.unit];
    const int64_t bytes = unit->padded_numel * fsdp_dtype_bytes(plan->config.param_dtype);
    snprintf(out[0], FSDP_REPORT_HINT_BYTES,
             "unit %s (%s) stays gathered through the whole step with %s; --wrap block would save %s at "
             "the peak",
             *unit->path ? unit->path : "(root)", plan->graph->modules[unit->module].class_name,
             fsdp_print_bytes(bytes).text, fsdp_print_bytes(hints.saved_bytes).text);
  }
  if (hints.preset_bytes)
    snprintf(out[1], FSDP_REPORT_HINT_BYTES,
             "--sharding fsdp-tp on this mesh would send %s less a step and rank",
             fsdp_print_bytes(hints.preset_bytes).text);
}

// ---- Units, alike ones folded

// Units that differ in nothing but one number of their paths.
typedef struct unit_group {
  char pattern[FSDP_NAME_BYTES]; // the path with its first number replaced by '#'
  const fsdp_unit *unit;         // the first of them
  int count;
  int64_t first, last; // the numbers
} unit_group;

// Replaces the first path component that is a number, axes behind it aside, by '#'. Returns the number, or -1
// if there is none.
static int64_t make_pattern(const char *path, char pattern[FSDP_NAME_BYTES]) {
  snprintf(pattern, FSDP_NAME_BYTES, "%s", path);
  for (const char *at = path; *at;) {
    size_t length = strcspn(at, "."), digits = strspn(at, "0123456789");
    if (digits > 0 && (digits == length || at[digits] == ' ')) {
      snprintf(pattern, FSDP_NAME_BYTES, "%.*s#%s", (int)(at - path), path, at + digits);
      return strtoll(at, NULL, 10);
    }
    at += length + (at[length] == '.');
  }
  return -1;
}

static bool joins(const fsdp_graph *graph, const unit_group *group, const char *pattern,
                  const fsdp_unit *unit, int64_t number) {
  return number >= 0 && number == group->last + 1 && strcmp(group->pattern, pattern) == 0 &&
         unit->numel == group->unit->numel && unit->padded_numel == group->unit->padded_numel &&
         strcmp(graph->modules[unit->module].class_name, graph->modules[group->unit->module].class_name) == 0;
}

// Groups the plan's units in the order of their first members. The caller frees the result.
static unit_group *group_units(const fsdp_plan *plan, int *count) {
  const fsdp_units *units = plan->units;
  unit_group *groups = fsdp_alloc_zeroed((size_t)units->count, sizeof *groups);
  *count = 0;
  for (int i = 0; i < units->count; i++) {
    const fsdp_unit *unit = &units->units[i];
    char pattern[FSDP_NAME_BYTES];
    int64_t number = make_pattern(unit->path, pattern);
    int at = 0;
    while (at < *count && !joins(plan->graph, &groups[at], pattern, unit, number)) at++;
    if (at == *count) {
      groups[(*count)++] = (unit_group){.unit = unit, .first = number};
      memcpy(groups[at].pattern, pattern, sizeof pattern);
    }
    groups[at].last = number;
    groups[at].count++;
  }
  return groups;
}

static const char *group_name(const unit_group *group, char out[LABEL_BYTES]) {
  const char *mark = strchr(group->pattern, '#');
  if (!*group->unit->path) {
    snprintf(out, LABEL_BYTES, "(root)");
  } else if (!mark || group->count == 1) {
    snprintf(out, LABEL_BYTES, "%s", group->unit->path);
  } else {
    snprintf(out, LABEL_BYTES, "%.*s{%" PRId64 "-%" PRId64 "}%s", (int)(mark - group->pattern),
             group->pattern, group->first, group->last, mark + 1);
  }
  return out;
}

static void print_units(const fsdp_plan *plan, FILE *out) {
  int count, width = 36; // of the longest path
  unit_group *groups = group_units(plan, &count);
  char name[LABEL_BYTES];
  for (int i = 0; i < count; i++) {
    int length = (int)strlen(group_name(&groups[i], name));
    width = length > width ? length : width;
  }
  fprintf(out, "\nUnits: %d\n  %-*s %5s  %-22s %18s %12s %12s\n", plan->units->count, width, "path", "count",
          "class", "parameters each", "gathered", "shard");
  for (int i = 0; i < count; i++) {
    const fsdp_unit *unit = groups[i].unit;
    int64_t param_bytes = fsdp_dtype_bytes(plan->config.param_dtype);
    int64_t master_bytes = fsdp_dtype_bytes(plan->config.master_dtype);
    fprintf(out, "  %-*s %5d  %-22s %18s %12s %12s\n", width, group_name(&groups[i], name), groups[i].count,
            plan->graph->modules[unit->module].class_name, fsdp_print_int(unit->numel).text,
            fsdp_print_bytes(unit->padded_numel * param_bytes).text,
            fsdp_print_bytes(unit->shard_numel * master_bytes).text);
  }
  free(groups);
}

// ---- Memory

static int by_bytes_descending(const void *a, const void *b) {
  const int64_t x = (*(const fsdp_tensor *const *)a)->bytes, y = (*(const fsdp_tensor *const *)b)->bytes;
  return x < y ? 1 : x > y ? -1 : 0;
}

// The largest tensors live at the device's peak.
static void print_largest(const fsdp_plan *plan, int position, FILE *out) {
  enum { SHOWN = 5 };
  const fsdp_program *program = plan->program;
  const fsdp_tensor **live = fsdp_alloc_zeroed((size_t)program->tensor_count, sizeof *live);
  int count = 0;
  for (int i = 0; i < program->tensor_count; i++) {
    const fsdp_tensor *tensor = &program->tensors[i];
    if (tensor->space == FSDP_SPACE_DEVICE && tensor->begin <= position && position <= tensor->end)
      live[count++] = tensor;
  }
  qsort(live, (size_t)count, sizeof *live, by_bytes_descending);
  fprintf(out, "  largest there\n");
  for (int i = 0; i < count && i < SHOWN; i++) {
    fprintf(out, "    %10s  %-16s %s\n", fsdp_print_bytes(live[i]->bytes).text,
            fsdp_category_name(live[i]->category), live[i]->name);
  }
  free(live);
}

static void print_memory_row(const char *name, int64_t device, int64_t host, FILE *out) {
  fprintf(out, "  %-22s %10s %20s   %10s %20s\n", name, fsdp_print_bytes(device).text,
          fsdp_print_int(device).text, fsdp_print_bytes(host).text, fsdp_print_int(host).text);
}

static void print_memory(const fsdp_plan *plan, FILE *out) {
  const fsdp_memory_space_report *device = &plan->memory.space[FSDP_SPACE_DEVICE];
  const fsdp_memory_space_report *host = &plan->memory.space[FSDP_SPACE_HOST];
  fprintf(out, "\nMemory of a rank, bytes\n  %-22s %31s   %31s\n", "", "device", "host");
  print_memory_row("valley, between steps", device->valley_bytes, host->valley_bytes, out);
  print_memory_row("peak", device->peak_bytes, host->peak_bytes, out);
  print_memory_row("arena, allocated", device->arena_bytes, host->arena_bytes, out);
  if (device->arena_bytes > fsdp_memory_promised_bytes(device->greatest_bytes))
    fprintf(out,
            "  the device's is %.1f%% larger than it must be, so that less waits for memory to be free\n",
            100 * ((double)device->arena_bytes / (double)device->greatest_bytes - 1));
  int64_t reserve = fsdp_plan_reserve_bytes(plan);
  if (reserve > 0)
    print_memory_row(fsdp_plan_reserve_estimated(plan) ? "reserve, not measured" : "reserve", reserve, 0,
                     out);
  if (*plan->config.backend->assumed)
    fprintf(out, "  as the profile does not state them, %s are %s's\n", plan->config.backend->assumed,
            fsdp_plan_default_profile());
  fprintf(out, "  of the peak\n");
  for (int i = 0; i < FSDP_CATEGORY_COUNT; i++) {
    if (!device->peak_by_category[i] && !host->peak_by_category[i]) continue;
    char name[64];
    snprintf(name, sizeof name, "  %s", fsdp_category_name((fsdp_category)i));
    print_memory_row(name, device->peak_by_category[i], host->peak_by_category[i], out);
  }
  char position[LABEL_BYTES + 128];
  fprintf(out, "  the device's peak is at %s\n",
          fsdp_plan_print_position(plan, device->peak_position, position, sizeof position));
  print_largest(plan, device->peak_position, out);
}

// ---- The page

void fsdp_report_print_model(const char *model_name, const fsdp_model_config *model, int64_t seq, FILE *out) {
  fprintf(out, "%s: %s parameters, sequences of %" PRId64 " tokens\n", model_name,
          fsdp_print_int(fsdp_model_parameter_count(model)).text, seq);
}

static void print_head(const fsdp_plan *plan, const char *model_name, FILE *out) {
  const fsdp_plan_config *config = &plan->config;
  char mesh[FSDP_MESH_TEXT_BYTES];
  int ranks = fsdp_mesh_ranks(&config->mesh), part, parts = fsdp_plan_batch_part(plan, 0, &part);
  char share[48] = "rank"; // that has a micro-batch of its own
  if (ranks > parts) snprintf(share, sizeof share, "group of %d ranks", ranks / parts);
  fprintf(out, "%s: %s parameters, %d rank%s (%s), strategy %s%s, on %s\n", model_name,
          fsdp_print_int(fsdp_model_parameter_count(&config->model)).text, ranks, fsdp_plural(ranks),
          fsdp_mesh_print(&config->mesh, ", ", mesh), fsdp_strategy_name(config->strategy),
          plan->rows.pieces > 1 ? ", sequence parallel" : "", config->backend->name);
  fprintf(out, "micro-batch of %" PRId64 " x %" PRId64 " tokens per %s, %d per step, %s; prefetch %d%s\n",
          config->batch, config->seq, share, config->micro_batches,
          config->accumulate == FSDP_ACCUMULATE_LOCAL ? "accumulated whole" : "each reduced",
          config->prefetch, config->cpu_offload ? ", offloaded to the host" : "");
  char recomputed[FSDP_SAVING_TEXT_BYTES], offloaded[FSDP_SAVING_TEXT_BYTES];
  if (config->saving.count)
    fprintf(out, "activations recomputed: %s; offloaded: %s\n",
            fsdp_saving_print(&config->saving, FSDP_FATE_RECOMPUTE, recomputed),
            fsdp_saving_print(&config->saving, FSDP_FATE_OFFLOAD, offloaded));
  fprintf(out, "parameters in %s, reduced in %s, master %s, moments %s\n",
          fsdp_dtype_name(config->param_dtype), fsdp_dtype_name(config->reduce_dtype),
          fsdp_dtype_name(config->master_dtype), fsdp_dtype_name(config->moment_dtype));
}

static void print_traffic_row(const char *name, int64_t bytes, FILE *out) {
  fprintf(out, "  %-22s %10s %20s\n", name, fsdp_print_bytes(bytes).text, fsdp_print_int(bytes).text);
}

// By collective, then by the axes of the mesh that they are sent over.
static void print_traffic(const fsdp_plan *plan, FILE *out) {
  fprintf(out, "\nBytes that a rank sends in a step\n");
  for (int c = 0; c < FSDP_COLLECTIVE_COUNT; c++)
    print_traffic_row(fsdp_collective_rows[c].title, plan->traffic.bytes[c], out);
  print_traffic_row("scalars", plan->traffic.scalar_bytes, out);
  for (fsdp_axis_set axes = 1; axes < 1u << FSDP_MESH_AXES_MAX; axes++) {
    char names[FSDP_MESH_TEXT_BYTES], name[FSDP_MESH_TEXT_BYTES + 8];
    if (!plan->traffic.by_axes[axes]) continue;
    snprintf(name, sizeof name, "over %s", fsdp_mesh_print_axes(&plan->config.mesh, axes, names));
    print_traffic_row(name, plan->traffic.by_axes[axes], out);
  }
}

// Where ranks divide experts: how many routed rows these have room for, of the most that they can be sent.
static void print_experts(const fsdp_plan *plan, FILE *out) {
  const fsdp_graph *graph = plan->graph;
  const fsdp_node *first = NULL;
  int waves = 0;
  for (int i = 0; i < graph->forward_count; i++) {
    const fsdp_node *node = &graph->forward[i];
    if (!fsdp_op_is_grouped(node->kind) || !node->attrs.arrivals) continue;
    if (!first) first = node;
    waves += node->kind == first->kind && node->block == first->block;
  }
  if (!first) return;
  fprintf(out, "Experts: room for %s of the %s routed rows that a rank's can be sent",
          fsdp_print_int(fsdp_op_letter_size(&first->attrs, 'u', 0)).text,
          fsdp_print_int(first->attrs.arrivals).text);
  if (waves > 1) fprintf(out, ", the rest in up to %d further wave%s", waves - 1, fsdp_plural(waves - 1));
  fputc('\n', out);
}

void fsdp_report_print(const fsdp_plan *plan, const char *model_name, FILE *out) {
  print_head(plan, model_name, out);
  print_units(plan, out);
  print_memory(plan, out);
  fsdp_activations_print(plan, out);
  print_traffic(plan, out);
  fsdp_redistributions_print(plan, out);
  if (fsdp_plan_check_bytes(plan) > 0) {
    fprintf(out, "\nBytes that a rank reads to compare replicas\n");
    print_traffic_row("check", fsdp_plan_check_bytes(plan), out);
  }
  fprintf(out, "\nProgram: %d instructions, %d waits, hash %016" PRIx64 "\n", plan->program->instr_count,
          plan->program->wait_count, fsdp_program_hash(plan->program));
  if (plan->config.backend->device == FSDP_OP_CUDA)
    fprintf(out, "Kernels: attention by %s, products by the library\n",
            fsdp_attention_kernel_name(fsdp_plan_attention(&plan->config)));
  print_experts(plan, out);
  fprintf(out, "Verified: %s\n",
          plan->verified ? "yes; no two instructions race, every read finds what it expects" : "no");
  char hints[2][FSDP_REPORT_HINT_BYTES];
  fsdp_report_hints(plan, hints);
  for (int i = 0; i < 2; i++)
    if (*hints[i]) fprintf(out, "hint: %s\n", hints[i]);
}

// ---- JSON

static json_t *hint_json(const char *hint) {
  return *hint ? json_string(hint) : json_null();
}

json_t *fsdp_report_json(const fsdp_plan *plan) {
  json_t *root = fsdp_plan_json(plan);
  char hints[2][FSDP_REPORT_HINT_BYTES];
  fsdp_report_hints(plan, hints);
  int failed = json_object_set_new(root, "activations", fsdp_activations_json(plan)) |
               json_object_set_new(root, "redistributions", fsdp_redistributions_json(plan)) |
               json_object_set_new(root, "hint", hint_json(hints[0])) |
               json_object_set_new(root, "placement_hint", hint_json(hints[1]));
  FSDP_CHECK(!failed, "JSON of a plan");
  return root;
}
