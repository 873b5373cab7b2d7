// A Hugging Face model folder's config.json.
#pragma once

#include "models/model.h"

// Reads the file at `path` into `config` and checks it (fsdp_model_read). FSDP_ERR_INPUT, naming file, key,
// value and remedy, if the file is missing or malformed, lacks a field, or requires an unsupported feature;
// `config` is then unspecified.
fsdp_status fsdp_config_read(const char *path, fsdp_model_config *config, fsdp_error *error);
