// Files of a training run beside data and weights: the log, and what the model's folder says about its
// tokens.
#pragma once

#include "launcher/options.h"
#include "launcher/setup.h"
#include "runtime/io/metrics_log.h"

// Makes the experiment's folder where it is missing; its path into `path`. FSDP_ERR_INPUT.
fsdp_status fsdp_train_make_folder(const fsdp_options *options, char *path, size_t path_bytes,
                                   fsdp_error *error);

// Opens the log that --log names, or that of the experiment's folder (created where it is missing), emptied
// where `fresh`; *log is NULL where there is neither. FSDP_ERR_INPUT.
fsdp_status fsdp_train_open_log(const fsdp_options *options, bool fresh, fsdp_metrics_log **log,
                                fsdp_error *error);

// The tokenizer.json that the data must have been prepared with: --tokenizer's, or the model folder's. *path
// is owned by the caller, and NULL where there is none and text is bytes. FSDP_ERR_INPUT where the file is
// not there.
fsdp_status fsdp_train_find_tokenizer(const fsdp_options *options, const fsdp_setup *setup, char **path,
                                      fsdp_error *error);
