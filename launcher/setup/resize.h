// --resize-embeddings: a vocabulary larger than the one that the model was made with.
#pragma once

#include "launcher/options/options.h"
#include "models/model.h"

// Gives `model`, read from `folder` (NULL: a preset), as many tokens as --resize-embeddings says: a number,
// or the tokenizer's, which is the greatest token of its tokenizer.json and one. Into *stored_vocab what it
// had, 0 if nothing changed. FSDP_ERR_OPTION if that is no number or fewer than the model has; FSDP_ERR_INPUT
// if the tokenizer cannot be read.
fsdp_status fsdp_resize_embeddings(const fsdp_options *options, const char *folder, fsdp_model_config *model,
                                   int64_t *stored_vocab, fsdp_error *error);
