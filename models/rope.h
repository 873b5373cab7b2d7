// Rotary position embedding as configurations describe it.
//
// Both generations of keys are read: `rope_theta` with `rope_scaling` (whose kind is called `type` or
// `rope_type`), and Transformers 5's `rope_parameters`. If both are present, `rope_scaling` wins, as in
// Transformers.
#pragma once

#include "models/fields.h"
#include "models/model.h"

// Fills the rope_* fields of `config`, whose max_position_embeddings is read before. Refuses scalings that
// are not supported and heads that are rotated in part.
void fsdp_rope_read(fsdp_fields *fields, const json_t *root, double theta_default, fsdp_model_config *config);

// The value of "rope_scaling"; null if there is none. A new reference.
json_t *fsdp_rope_print(const fsdp_model_config *config);

// The inverse frequencies of half a head, scaling applied; the caller frees them.
float *fsdp_rope_inv_freq(const fsdp_model_config *config);
