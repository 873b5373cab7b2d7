// Files of a training run beside data and weights: the log, and what the model's folder says about its
// tokens.
#pragma once

#include "launcher/options.h"
#include "launcher/setup.h"
#include "runtime/io/metrics_log.h"

// Opens the log that --log names, or that of the experiment's folder (created where it is missing); *log is
// NULL where there is neither. FSDP_ERR_INPUT.
fsdp_status fsdp_train_open_log(const fsdp_options *options, fsdp_metrics_log **log, fsdp_error *error);

// Text is read as bytes, which a model with a tokenizer of its own would not understand. FSDP_ERR_INPUT where
// the model's folder has one.
fsdp_status fsdp_train_check_tokenizer(const fsdp_setup *setup, fsdp_error *error);
