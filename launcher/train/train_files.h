// Files of a training run besides data and weights: the log, and what the model's folder says about its
// tokens.
#pragma once

#include "launcher/options/options.h"
#include "launcher/report/metrics_log.h"
#include "launcher/setup/setup.h"

#define FSDP_TRAIN_PATH_BYTES 4096

// The experiment's folder, and which of it and of the one above it this run has made.
typedef struct fsdp_train_folder {
  char path[2048];
  bool made, made_above;
} fsdp_train_folder;

// Makes the experiment's folder if it is missing. FSDP_ERR_INPUT.
fsdp_status fsdp_train_make_folder(const fsdp_options *options, fsdp_train_folder *folder, fsdp_error *error);

// Removes what was made and nothing was written to: a start that fails leaves no empty folder.
void fsdp_train_leave_folder(const fsdp_options *options, const fsdp_train_folder *folder);

// The path of the log that --log names, or of that in the experiment's folder; "" if there is neither.
void fsdp_train_log_path(const fsdp_options *options, char path[FSDP_TRAIN_PATH_BYTES]);

// Opens it; *log is NULL if there is none. FSDP_ERR_INPUT.
fsdp_status fsdp_train_open_log(const fsdp_options *options, fsdp_metrics_log **log, fsdp_error *error);

// Writes run.yaml, the options that the run was started with, into its experiment's folder. FSDP_ERR_INPUT.
fsdp_status fsdp_train_write_options(const fsdp_options *options, int ranks, fsdp_error *error);

// How the model's tokens are made of text.
typedef struct fsdp_train_tokenizer {
  char *path;          // of the tokenizer.json that the data must have been prepared with; NULL: bytes
  bool asked_bytes;    // by --tokenizer bytes
  char no_bytes[1024]; // why text must not be taken for bytes, and what to do; "" if it may be
  bool notes_bytes;    // bytes are a small part of the vocabulary: enough to try the model out
} fsdp_train_tokenizer;

// --tokenizer's, or the model folder's. If there is none, tokens are bytes by themselves only for a model
// without weights to load and with a vocabulary of 256; for others, --tokenizer bytes must ask for it. The
// built-in text with a preset is excepted, which is how models are timed. FSDP_ERR_INPUT if the file is
// not there. Destroy it in any case.
fsdp_status fsdp_train_find_tokenizer(const fsdp_options *options, const fsdp_setup *setup,
                                      int64_t vocab_size, fsdp_train_tokenizer *tokenizer, fsdp_error *error);
void fsdp_train_tokenizer_destroy(fsdp_train_tokenizer *tokenizer);
