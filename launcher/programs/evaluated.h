// What fsdp_eval -e NAME evaluates: the newest checkpoint of an experiment, or the one that --resume names.
#pragma once

#include "launcher/options/options.h"

// Sets of the options those that the checkpoint answers and that are not given: its model, vocabulary and
// tokenizer, the length of its sequences, its parameters' dtype. --resume becomes the checkpoint's path, and
// `evaluated` the name of its model with that path. Nothing without -e.
// FSDP_ERR_OPTION, FSDP_ERR_INPUT.
fsdp_status fsdp_evaluated_find(fsdp_options *options, fsdp_error *error);
