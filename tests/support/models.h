// Models for tests: made field by field, or read from the text of a configuration.
#pragma once

#include "models/model.h"
#include "runtime/plan/plan.h"

// A preset, by its name.
fsdp_model_config model_of_preset(const char *name);
// The family of the preset `name`.
const fsdp_family *family_of_preset(const char *name);

// The configuration that `json` is; the test fails if it is refused.
fsdp_model_config model_of_json(const char *json);

typedef struct refused_model {
  const char *json;
  const char *parts[3]; // of the message
} refused_model;

// Fails the test unless every one is refused with all parts of its message.
void expect_models_refused(const refused_model *models, int count);

typedef struct compared_key {
  const char *key, *value;
  bool is_number; // FSDP_MODEL_NUMBERS
} compared_key;

// Fails the test unless a change of each key alone is found in its scopes and named first. `base` is a
// configuration without its closing brace.
void expect_keys_compared(const char *base, const compared_key *keys, int count);

// What `fsdp_model_print` makes of it, on one line with sorted keys; the caller frees it.
char *json_of_model(const fsdp_model_config *config);

// Reads what is printed of the model and fails the test if that differs.
void expect_model_read_back(const fsdp_model_config *config);

// The window of each layer, as its attention has it in both directions.
void windows_of_model(const fsdp_model_config *config, int64_t *windows);

// Writes the placements that the mesh has without rules into the graph.
void place_by_default(fsdp_graph *graph, const fsdp_mesh *mesh);
// The same by specs.
void place_by_specs(fsdp_graph *graph, fsdp_specs *specs, const fsdp_mesh *mesh);

// The module tree as PyTorch prints it; the caller frees it.
char *tree_of_model(const fsdp_model_config *config);

// The plan of a configuration; the test fails if there is none. The caller destroys it.
fsdp_plan *plan_of_config(const fsdp_plan_config *config);
// The same where values of lists are recomputed and offloaded (saving.h).
fsdp_plan *plan_of_saving(fsdp_plan_config config, const char *recomputed, const char *offloaded);

// A configuration for four ranks in which every parameter is a multiple of 16 * 8 elements: nothing is
// padded, so that closed formulas are exact.
fsdp_plan_config even_plan_config(void);
