// A Hugging Face model folder's config.json as a Llama configuration.
//
// Both generations of keys are read: `rope_theta` with `rope_scaling` (whose kind is called `type` or
// `rope_type`), and Transformers 5's `rope_parameters`. Where both are there, `rope_scaling` wins, as in
// Transformers. Keys that the shape of the model does not depend on (token ids, torch_dtype, ...) are not
// looked at; keys that would change the arithmetic (biases, another activation, quantisation, ...) are
// refused rather than ignored.
#pragma once

#include "models/llama.h"
#include "runtime/base/status.h"

#include <jansson.h>

// Reads the file at `path` into `config` and checks it (fsdp_llama_check). FSDP_ERR_INPUT, naming file, key,
// value and remedy, where the file is missing or malformed, lacks a field, or asks for what is not built;
// `config` is then unspecified.
fsdp_status fsdp_config_read(const char *path, fsdp_llama_config *config, fsdp_error *error);

// The same for an object that is there already; `where` names it in messages.
fsdp_status fsdp_config_parse(const json_t *root, const char *where, fsdp_llama_config *config,
                              fsdp_error *error);

// The object that fsdp_config_parse reads back as `config`, with what Transformers wants beside it. A new
// reference.
json_t *fsdp_config_json(const fsdp_llama_config *config);
