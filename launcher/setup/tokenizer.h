// What the model's folder and --tokenizer say about tokens.
#pragma once

#include "launcher/options/options.h"
#include "launcher/setup/setup.h"

// How the model's tokens are made of text.
typedef struct fsdp_train_tokenizer {
  char path[4096];     // of the tokenizer.json that the data must have been prepared with; "": bytes
  bool asked_bytes;    // by --tokenizer bytes
  char no_bytes[1024]; // why text must not be taken for bytes, and what to do; "" if it may be
  bool notes_bytes;    // bytes are a small part of the vocabulary: enough to try the model out
} fsdp_train_tokenizer;

// --tokenizer's, or the model folder's. If there is none, tokens are bytes by themselves only for a model
// without weights to load and with a vocabulary of 256; for others, --tokenizer bytes must ask for it. The
// built-in text with a preset is excepted, which is how models are timed. FSDP_ERR_INPUT if the file is
// not there.
fsdp_status fsdp_train_find_tokenizer(const fsdp_options *options, const fsdp_setup *setup,
                                      int64_t vocab_size, fsdp_train_tokenizer *tokenizer, fsdp_error *error);
