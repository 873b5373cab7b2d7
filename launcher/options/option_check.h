// Combinations of options that contradict each other.
#pragma once

#include "launcher/options/option_fields.h"
#include "runtime/base/status.h"

// FSDP_ERR_OPTION for the first one, with the options' places and a remedy.
fsdp_status fsdp_options_check(const fsdp_options *options, fsdp_program_kind program, fsdp_error *error);
