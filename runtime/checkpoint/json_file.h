// One JSON value as a file: a configuration, an index, a manifest.
#pragma once

#include "models/model.h"
#include "runtime/base/status.h"

#include <jansson.h>

typedef struct fsdp_json_file {
  const char *path;
  const char *missing; // what to do if it cannot be read at all
  const char *damaged; // what to do if it is not JSON
} fsdp_json_file;

// Reads the file, which holds one value and nothing behind it. FSDP_ERR_INPUT if it is missing, a folder, no
// regular file (which is not waited for), larger than 256 MiB, no JSON, or has a key twice. The caller owns
// *root.
fsdp_status fsdp_json_file_read(const fsdp_json_file *file, json_t **root, fsdp_error *error);

// Reads a model's config.json at `path` into `config` and checks it (fsdp_model_read). FSDP_ERR_INPUT, naming
// file, key, value and remedy, if the file is missing or malformed, lacks a field, or requires an unsupported
// feature; `config` is then unspecified.
fsdp_status fsdp_config_read(const char *path, fsdp_model_config *config, fsdp_error *error);
