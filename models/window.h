// Sliding windows of some layers, as Qwen's configurations describe them: `use_sliding_window`,
// `sliding_window`, and which layers have it: those from `max_window_layers` on, or as the list `layer_types`
// says. If both are present, the list wins, as in Transformers.
#pragma once

#include "models/fields.h"
#include "models/model_config.h"

// Fills `window` and `first_window_layer`; num_layers is read before. Refuses windows in any layers but the
// last ones.
void fsdp_window_read(fsdp_fields *fields, const json_t *root, fsdp_model_config *config);

// Adds the keys that fsdp_window_read depends on.
void fsdp_window_print(const fsdp_model_config *config, json_t *root);
