// Combinations of options that contradict each other: pairs that exclude or need each other, in a table
// (option_rules.c), and others.
#pragma once

#include "runtime/base/status.h"
#include "runtime/plan/text/option_fields.h"

// FSDP_ERR_OPTION for the first one, with the options' places and a remedy. With --compare only what does not
// go with several plans is looked at.
fsdp_status fsdp_options_check(const fsdp_options *options, fsdp_program_kind program, fsdp_error *error);

// The table's part of it.
fsdp_status fsdp_options_check_rules(const fsdp_options *options, fsdp_program_kind program,
                                     fsdp_error *error);

// Of one of the files that --compare names, with that option: what is not of one plan among several.
// FSDP_ERR_OPTION.
fsdp_status fsdp_options_check_compared(const fsdp_options *options, fsdp_error *error);
