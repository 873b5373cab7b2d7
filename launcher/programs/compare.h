// Several plans in one table: what each needs, sends, and whether it fits.
#pragma once

#include "launcher/options/options.h"

// What --compare asks for. The arguments are read again for each of its files. A plan that does not fit has
// its row. FSDP_ERR_OPTION, FSDP_ERR_INPUT.
fsdp_status fsdp_compare_plans(const fsdp_options *options, int argc, char **argv, fsdp_error *error);
