#include "launcher/report/memory_profile.h"
#include "launcher/report/whole_file.h"
#include "runtime/base/check.h"
#include "runtime/plan/text/plan_json.h"

#include <jansson.h>
#include <string.h>

// ---- JSON

static json_t *space_json(const fsdp_memory_profile *profile, fsdp_space space) {
  const fsdp_memory_space_report *report = &profile->plan->memory.space[space];
  char at[512];
  json_t *bytes = json_object();
  for (int category = 0; category < FSDP_CATEGORY_COUNT; category++) {
    json_t *series = json_array();
    for (int i = 0; i < profile->position_count; i++) {
      json_array_append_new(series, json_integer(profile->bytes[space][i * FSDP_CATEGORY_COUNT + category]));
    }
    json_object_set_new(bytes, fsdp_category_name((fsdp_category)category), series);
  }
  return json_pack("{s:I, s:I, s:I, s:i, s:s, s:o}", "valley_bytes", (json_int_t)report->valley_bytes,
                   "peak_bytes", (json_int_t)report->peak_bytes, "arena_bytes",
                   (json_int_t)report->arena_bytes, "peak_position", report->peak_position, "peak_at",
                   fsdp_plan_print_position(profile->plan, report->peak_position, at, sizeof at), "bytes",
                   bytes);
}

static void print_json(const fsdp_memory_profile *profile, FILE *out) {
  json_t *phases = json_array(), *instructions = json_array();
  fsdp_memory_phase phase[2 * FSDP_MAX_SECTIONS];
  int count = fsdp_memory_profile_phases(profile, phase);
  for (int i = 0; i < count; i++) {
    json_array_append_new(phases, json_pack("{s:s, s:i, s:i, s:i}", "name", phase[i].name, "begin",
                                            phase[i].begin, "end", phase[i].end, "times", phase[i].times));
  }
  for (int i = 0; i < profile->position_count; i++) {
    char text[256];
    json_array_append_new(instructions,
                          json_string(fsdp_plan_print_instr(profile->plan, i, text, sizeof text)));
  }
  const fsdp_plan_config *config = &profile->plan->config;
  json_t *root =
      json_pack("{s:s, s:i, s:s, s:o, s:o, s:o, s:o}", "model", profile->model_name, "ranks",
                fsdp_mesh_ranks(&config->mesh), "strategy", fsdp_strategy_name(config->strategy), "phases",
                phases, "instructions", instructions, "device", space_json(profile, FSDP_SPACE_DEVICE),
                "host", space_json(profile, FSDP_SPACE_HOST));
  FSDP_CHECK(root, "JSON of memory");
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
