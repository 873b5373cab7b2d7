#include "runtime/plan/text/plan_json.h"

#include "runtime/base/check.h"

#include <inttypes.h>
#include <string.h>

#define LABEL_BYTES 256

// ---- Names of places

const char *fsdp_plan_print_instr(const fsdp_plan *plan, int position, char *out, size_t out_bytes) {
  FSDP_CHECK(position >= 0 && position < plan->program->instr_count, "position %d", position);
  const fsdp_instr *instr = &plan->program->instrs[position];
  const char *what = fsdp_instr_name(instr);
  if (instr->module >= 0) {
    char path[FSDP_NAME_BYTES];
    fsdp_graph_module_path(plan->graph, instr->module, path);
    snprintf(out, out_bytes, "%s of %s", what, *path ? path : "the root");
  } else if (instr->unit >= 0) {
    const char *path = plan->units->units[instr->unit].path;
    snprintf(out, out_bytes, "%s of unit %s", what, *path ? path : "(root)");
  } else {
    snprintf(out, out_bytes, "%s", what);
  }
  return out;
}

const char *fsdp_plan_print_position(const fsdp_plan *plan, int position, char *out, size_t out_bytes) {
  char instr[LABEL_BYTES], phase[64] = "";
  const fsdp_program *program = plan->program;
  for (int i = 0; i < program->section_count; i++) {
    const fsdp_section *section = &program->sections[i];
    if (position < section->begin || position >= section->end) continue;
    const char *name = fsdp_section_name(section->kind);
    bool update = section->kind >= FSDP_SECTION_UPDATE;
    bool backward = position >= fsdp_program_backward_begin(program, section);
    if (update) {
      snprintf(phase, sizeof phase, " (%s)", name);
    } else {
      snprintf(phase, sizeof phase, " (%s of the %s micro-batch)", backward ? "backward" : "forward", name);
    }
  }
  snprintf(out, out_bytes, "instruction %d%s: %s", position, phase,
           fsdp_plan_print_instr(plan, position, instr, sizeof instr));
  return out;
}

// ---- JSON

// jansson answers -1 or NULL only when it runs out of memory or is given text that is not UTF-8.
static void put(json_t *object, const char *key, json_t *value) {
  FSDP_CHECK(value && json_object_set_new(object, key, value) == 0, "JSON member %s", key);
}

json_t *fsdp_mesh_json(const fsdp_mesh *mesh) {
  json_t *axes = json_object();
  for (int a = 0; a < mesh->count; a++) {
    const fsdp_mesh_axis *axis = &mesh->axes[a];
    bool shown = axis->size > 1 || !strcmp(axis->name, FSDP_AXIS_DATA) || !strcmp(axis->name, FSDP_AXIS_FSDP);
    if (shown) put(axes, axis->name, json_integer(axis->size));
  }
  return axes;
}

// Of a step of all ranks.
static json_t *batch_json(const fsdp_plan *plan) {
  const fsdp_plan_config *c = &plan->config;
  json_t *batch = json_object();
  int part, parts = fsdp_plan_batch_part(plan, 0, &part);
  int64_t sequences = c->batch * c->micro_batches * parts;
  put(batch, "parts", json_integer(parts));
  put(batch, "sequences", json_integer(sequences));
  put(batch, "tokens", json_integer(sequences * c->seq));
  return batch;
}

static json_t *units_json(const fsdp_plan *plan) {
  json_t *units = json_array();
  for (int i = 0; i < plan->units->count; i++) {
    const fsdp_unit *unit = &plan->units->units[i];
    json_t *entry = json_object();
    put(entry, "path", json_string(unit->path));
    put(entry, "class", json_string(plan->graph->modules[unit->module].class_name));
    put(entry, "numel", json_integer(unit->numel));
    put(entry, "padded_numel", json_integer(unit->padded_numel));
    FSDP_CHECK(json_array_append_new(units, entry) == 0, "JSON unit %d", i);
  }
  return units;
}

static json_t *categories_json(const int64_t bytes[FSDP_CATEGORY_COUNT]) {
  json_t *categories = json_object();
  for (int i = 0; i < FSDP_CATEGORY_COUNT; i++) {
    put(categories, fsdp_category_name((fsdp_category)i), json_integer(bytes[i]));
  }
  return categories;
}

static json_t *memory_json(const fsdp_plan *plan) {
  const fsdp_memory_space_report *device = &plan->memory.space[FSDP_SPACE_DEVICE];
  const fsdp_memory_space_report *host = &plan->memory.space[FSDP_SPACE_HOST];
  char position[LABEL_BYTES + 128];
  json_t *memory = json_object();
  put(memory, "valley_bytes", json_integer(device->valley_bytes));
  put(memory, "peak_bytes", json_integer(device->peak_bytes));
  put(memory, "arena_bytes", json_integer(device->arena_bytes));
  put(memory, "reserve_bytes", json_integer(fsdp_plan_reserve_bytes(plan)));
  put(memory, "reserve_estimated", json_boolean(fsdp_plan_reserve_estimated(plan)));
  put(memory, "peak_at",
      json_string(fsdp_plan_print_position(plan, device->peak_position, position, sizeof position)));
  put(memory, "peak_position", json_integer(device->peak_position));
  put(memory, "host_bytes", json_integer(host->arena_bytes));
  put(memory, "host_valley_bytes", json_integer(host->valley_bytes));
  put(memory, "host_peak_bytes", json_integer(host->peak_bytes));
  put(memory, "by_category", categories_json(device->peak_by_category));
  put(memory, "valley_by_category", categories_json(device->valley_by_category));
  put(memory, "host_by_category", categories_json(host->peak_by_category));
  return memory;
}

static json_t *traffic_json(const fsdp_plan *plan) {
  json_t *comm = json_object(), *by_axis = json_object();
  for (int c = 0; c < FSDP_COLLECTIVE_COUNT; c++) {
    char key[64];
    snprintf(key, sizeof key, "%s_bytes", fsdp_collective_rows[c].name);
    put(comm, key, json_integer(plan->traffic.bytes[c]));
  }
  put(comm, "scalar_bytes", json_integer(plan->traffic.scalar_bytes));
  for (fsdp_axis_set axes = 1; axes < 1u << FSDP_MESH_AXES_MAX; axes++) {
    char names[FSDP_MESH_TEXT_BYTES];
    if (!plan->traffic.by_axes[axes]) continue;
    put(by_axis, fsdp_mesh_print_axes(&plan->config.mesh, axes, names),
        json_integer(plan->traffic.by_axes[axes]));
  }
  put(comm, "by_axis", by_axis);
  return comm;
}

json_t *fsdp_plan_json(const fsdp_plan *plan) {
  json_t *root = json_object(), *model = json_object(), *program = json_object();
  put(model, "parameters", json_integer(fsdp_model_parameter_count(&plan->config.model)));
  char hash[24];
  snprintf(hash, sizeof hash, "%016" PRIx64, fsdp_program_hash(plan->program));
  put(program, "instructions", json_integer(plan->program->instr_count));
  put(program, "check_bytes", json_integer(fsdp_plan_check_bytes(plan)));
  put(program, "waits", json_integer(plan->program->wait_count));
  put(program, "hash", json_string(hash));
  if (plan->config.backend->device == FSDP_OP_CUDA)
    put(program, "kernels",
        json_pack("{s:s, s:s}", "attention", fsdp_attention_kernel_name(fsdp_plan_attention(&plan->config)),
                  "products", "by the library"));
  put(root, "model", model);
  put(root, "mesh", fsdp_mesh_json(&plan->config.mesh));
  put(root, "batch", batch_json(plan));
  put(root, "units", units_json(plan));
  put(root, "memory", memory_json(plan));
  put(root, "comm", traffic_json(plan));
  put(root, "program", program);
  put(root, "verified", json_boolean(plan->verified));
  return root;
}
