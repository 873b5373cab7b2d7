// Files of a training run beside data and weights: the log, and what the model's folder says about its
// tokens.
#pragma once

#include "launcher/cli/options.h"
#include "launcher/cli/setup.h"
#include "launcher/report/metrics_log.h"

// Makes the experiment's folder where it is missing; its path into `path`. FSDP_ERR_INPUT.
fsdp_status fsdp_train_make_folder(const fsdp_options *options, char *path, size_t path_bytes,
                                   fsdp_error *error);

// Opens the log that --log names, or that of the experiment's folder (created where it is missing), emptied
// where `fresh`; *log is NULL where there is neither. FSDP_ERR_INPUT.
fsdp_status fsdp_train_open_log(const fsdp_options *options, bool fresh, fsdp_metrics_log **log,
                                fsdp_error *error);

// How the model's tokens are made of text.
typedef struct fsdp_train_tokenizer {
  char *path;          // of the tokenizer.json that the data must have been prepared with; NULL: bytes
  bool asked_bytes;    // by --tokenizer bytes
  char no_bytes[1024]; // why text must not be taken for bytes, and what to do; "" where it may be
  bool notes_bytes;    // bytes are a small part of the vocabulary: enough to try the model out
} fsdp_train_tokenizer;

// --tokenizer's, or the model folder's. Where there is none, tokens are bytes by themselves only for a model
// without weights to load and with a vocabulary of 256; for others, --tokenizer bytes must ask for it. The
// built-in text with a preset is excepted, which is how models are timed. FSDP_ERR_INPUT where the file is
// not there. Destroy it in any case.
fsdp_status fsdp_train_find_tokenizer(const fsdp_options *options, const fsdp_setup *setup,
                                      fsdp_train_tokenizer *tokenizer, fsdp_error *error);
void fsdp_train_tokenizer_destroy(fsdp_train_tokenizer *tokenizer);
