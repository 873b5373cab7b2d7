#include "tests/support/models.h"

#include "runtime/base/check.h"
#include "runtime/plan/mesh/units.h"
#include "runtime/plan/sharding/partition.h"
#include "tests/support/unit_test.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

fsdp_model_config model_of_preset(const char *name) {
  fsdp_model_config config;
  fsdp_error error;
  FSDP_CHECK(fsdp_model_preset(name, &config, &error) == FSDP_OK, "%s", error.message);
  return config;
}

const fsdp_family *family_of_preset(const char *name) {
  return model_of_preset(name).family;
}

static fsdp_status read_json(const char *json, fsdp_model_config *config, fsdp_error *error) {
  json_error_t at;
  json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, &at);
  if (!root) fail_msg("%s: %s", at.text, json);
  fsdp_status status = fsdp_model_read(root, "HERE", config, error);
  json_decref(root);
  return status;
}

fsdp_model_config model_of_json(const char *json) {
  fsdp_model_config config;
  fsdp_error error;
  if (read_json(json, &config, &error)) fail_msg("refused: %s", error.message);
  return config;
}

void expect_models_refused(const refused_model *models, int count) {
  for (int i = 0; i < count; i++) {
    fsdp_model_config config;
    fsdp_error error;
    fsdp_status status = read_json(models[i].json, &config, &error);
    if (status != FSDP_ERR_INPUT) fail_msg("not refused: %s", models[i].json);
    if (!strstr(error.message, "HERE")) fail_msg("\"%s\" does not name the place", error.message);
    for (int p = 0; p < 3 && models[i].parts[p]; p++)
      if (!strstr(error.message, models[i].parts[p]))
        fail_msg("\"%s\" lacks \"%s\"", error.message, models[i].parts[p]);
  }
}

void expect_keys_compared(const char *base, const compared_key *keys, int count) {
  char json[1024], out[512];
  snprintf(json, sizeof json, "%s}", base);
  const fsdp_model_config one = model_of_json(json);
  assert_false(fsdp_model_differs(&one, &one, FSDP_MODEL_ALL, out, sizeof out));
  for (int i = 0; i < count; i++) {
    snprintf(json, sizeof json, "%s,\"%s\":%s}", base, keys[i].key, keys[i].value);
    const fsdp_model_config other = model_of_json(json);
    bool found = fsdp_model_differs(&one, &other, FSDP_MODEL_ALL, out, sizeof out);
    if (!found || strncmp(out, keys[i].key, strlen(keys[i].key)) != 0) fail_msg("%s: '%s'", keys[i].key, out);
    found = fsdp_model_differs(&one, &other, FSDP_MODEL_NUMBERS, out, sizeof out);
    if (found != keys[i].is_number) fail_msg("%s: '%s' of numbers", keys[i].key, out);
  }
}

char *json_of_model(const fsdp_model_config *config) {
  json_t *root = fsdp_model_print(config);
  char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
  json_decref(root);
  assert_non_null(text);
  return text;
}

void expect_model_read_back(const fsdp_model_config *config) {
  char out[512], *text = json_of_model(config);
  fsdp_model_config again = model_of_json(text);
  if (fsdp_model_differs(config, &again, FSDP_MODEL_ALL, out, sizeof out)) fail_msg("%s", out);
  assert_ptr_equal(again.family, config->family);
  free(text);
}

void windows_of_model(const fsdp_model_config *config, int64_t *windows) {
  fsdp_graph *graph = fsdp_model_graph(config, 1, 2);
  int seen = 0;
  for (int i = 0; i < graph->forward_count; i++)
    if (graph->forward[i].kind == FSDP_OP_ATTENTION)
      windows[graph->forward[i].block] = graph->forward[i].attrs.window, seen++;
  for (int i = 0; i < graph->backward_count; i++) {
    const fsdp_node *node = &graph->backward[i];
    if (node->kind == FSDP_OP_ATTENTION_BACKWARD) assert_int_equal(node->attrs.window, windows[node->block]);
  }
  assert_int_equal(seen, config->num_layers);
  fsdp_graph_destroy(graph);
}

void place_by_specs(fsdp_graph *graph, fsdp_specs *specs, const fsdp_mesh *mesh) {
  fsdp_factored_mesh axes = fsdp_factored_mesh_of(specs, graph, mesh);
  fsdp_rows rows;
  fsdp_error error;
  if (fsdp_partition(graph, specs, mesh, &axes, &rows, &error)) fail_msg("%s", error.message);
}

void place_by_default(fsdp_graph *graph, const fsdp_mesh *mesh) {
  fsdp_specs *specs = fsdp_specs_default(graph, mesh);
  place_by_specs(graph, specs, mesh);
  fsdp_specs_destroy(specs);
}

char *tree_of_model(const fsdp_model_config *config) {
  fsdp_graph *graph = fsdp_model_graph(config, 1, 2);
  fsdp_mesh mesh = fsdp_mesh_of(1, 1);
  fsdp_units *units;
  fsdp_error error;
  fsdp_status status =
      fsdp_units_create(graph, &(fsdp_wrap_policy){.kind = FSDP_WRAP_NONE}, &mesh, &units, &error);
  assert_int_equal(status, FSDP_OK);
  units->unit_of_module[0] = -1; // the root's wrapper
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  FSDP_CHECK(out, "out of host memory");
  fsdp_units_print_tree(units, graph, out);
  fclose(out);
  fsdp_units_destroy(units);
  fsdp_graph_destroy(graph);
  return text;
}

fsdp_plan *plan_of_config(const fsdp_plan_config *config) {
  fsdp_plan *plan = NULL;
  fsdp_error error = {0};
  if (fsdp_plan_create(config, &plan, &error) != FSDP_OK) fail_msg("%s", error.message);
  return plan;
}

fsdp_plan *plan_of_saving(fsdp_plan_config config, const char *recomputed, const char *offloaded) {
  fsdp_error error = {0};
  if (fsdp_saving_parse(recomputed, "-", FSDP_FATE_RECOMPUTE, &config.saving, &error) != FSDP_OK ||
      fsdp_saving_parse(offloaded, "-", FSDP_FATE_OFFLOAD, &config.saving, &error) != FSDP_OK)
    fail_msg("%s", error.message);
  return plan_of_config(&config);
}

fsdp_plan_config even_plan_config(void) {
  return (fsdp_plan_config){.model = {.family = family_of_preset("tiny"),
                                      .vocab_size = 256,
                                      .hidden_size = 128,
                                      .intermediate_size = 256,
                                      .num_layers = 3,
                                      .num_heads = 4,
                                      .num_kv_heads = 2,
                                      .head_dim = 32,
                                      .norm_eps = 1e-5,
                                      .rope_theta = 1e4},
                            .batch = 1,
                            .seq = 32,
                            .micro_batches = 1,
                            .strategy = FSDP_FULL,
                            .mesh = fsdp_mesh_of(1, 4),
                            .wrap = {.kind = FSDP_WRAP_BLOCK},
                            .prefetch = 1,
                            .grad_clip = 1.0f,
                            .backend = fsdp_plan_backend_cpu()};
}
