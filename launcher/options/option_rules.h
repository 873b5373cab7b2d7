// Pairs of options that exclude or need each other: a table of them with their texts.
#pragma once

#include "launcher/options/option_fields.h"
#include "runtime/base/status.h"

// FSDP_ERR_OPTION with the text of the first rule that the options break. With --compare only what does not
// go with several plans is looked at.
fsdp_status fsdp_options_check_rules(const fsdp_options *options, fsdp_program_kind program,
                                     fsdp_error *error);

// Of one of the files that --compare names, with that option: what is not of one plan among several.
// FSDP_ERR_OPTION.
fsdp_status fsdp_options_check_compared(const fsdp_options *options, fsdp_error *error);
