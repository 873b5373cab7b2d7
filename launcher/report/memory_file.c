#include "launcher/report/memory_profile.h"
#include "launcher/report/whole_file.h"
#include "runtime/base/check.h"
#include "runtime/plan/text/plan_json.h"

#include <jansson.h>
#include <string.h>

// ---- JSON

static void put(json_t *object, const char *key, json_t *value) {
  FSDP_CHECK(value && json_object_set_new(object, key, value) == 0, "JSON member %s", key);
}

static json_t *space_json(const fsdp_memory_profile *profile, fsdp_space space) {
  const fsdp_memory_space_report *report = &profile->plan->memory.space[space];
  json_t *object = json_object(), *bytes = json_object();
  put(object, "valley_bytes", json_integer(report->valley_bytes));
  put(object, "peak_bytes", json_integer(report->peak_bytes));
  put(object, "arena_bytes", json_integer(report->arena_bytes));
  put(object, "peak_position", json_integer(report->peak_position));
  char at[512];
  put(object, "peak_at",
      json_string(fsdp_plan_print_position(profile->plan, report->peak_position, at, sizeof at)));
  for (int category = 0; category < FSDP_CATEGORY_COUNT; category++) {
    json_t *series = json_array();
    for (int i = 0; i < profile->position_count; i++) {
      json_array_append_new(series, json_integer(profile->bytes[space][i * FSDP_CATEGORY_COUNT + category]));
    }
    put(bytes, fsdp_category_name((fsdp_category)category), series);
  }
  put(object, "bytes", bytes);
  return object;
}

static void print_json(const fsdp_memory_profile *profile, FILE *out) {
  json_t *root = json_object(), *phases = json_array(), *instructions = json_array();
  fsdp_memory_phase phase[2 * FSDP_MAX_SECTIONS];
  int count = fsdp_memory_profile_phases(profile, phase);
  for (int i = 0; i < count; i++) {
    json_t *entry = json_object();
    put(entry, "name", json_string(phase[i].name));
    put(entry, "begin", json_integer(phase[i].begin));
    put(entry, "end", json_integer(phase[i].end));
    put(entry, "times", json_integer(phase[i].times));
    json_array_append_new(phases, entry);
  }
  for (int i = 0; i < profile->position_count; i++) {
    char text[256];
    json_array_append_new(instructions,
                          json_string(fsdp_plan_print_instr(profile->plan, i, text, sizeof text)));
  }
  put(root, "model", json_string(profile->model_name));
  put(root, "ranks", json_integer(fsdp_mesh_ranks(&profile->plan->config.mesh)));
  put(root, "strategy", json_string(fsdp_strategy_name(profile->plan->config.strategy)));
  put(root, "phases", phases);
  put(root, "instructions", instructions);
  put(root, "device", space_json(profile, FSDP_SPACE_DEVICE));
  put(root, "host", space_json(profile, FSDP_SPACE_HOST));
  json_dumpf(root, out, JSON_COMPACT);
  fputc('\n', out);
  json_decref(root);
}

// ---- The file

fsdp_status fsdp_memory_profile_write(const fsdp_plan *plan, const char *model_name, const char *path,
                                      fsdp_error *error) {
  fsdp_whole_file file;
  fsdp_status status = fsdp_whole_file_open("memory-profile", path, &file, error);
  if (status != FSDP_OK) return status;
  fsdp_memory_profile profile = fsdp_memory_profile_create(plan, model_name);
  const char *end = strrchr(path, '.');
  if (end && strcmp(end, ".svg") == 0) {
    fsdp_memory_svg_print(&profile, file.out);
  } else {
    print_json(&profile, file.out);
  }
  fsdp_memory_profile_destroy(&profile);
  return fsdp_whole_file_close(&file, error);
}
