// One model on several machines: the best plan of each, or the given plan's price, in one table.
#pragma once

#include "launcher/options/options.h"

// What --machines asks for: "16 a100-40, 8 h100-sxm @2.5" are ranks and profiles, and what a rank's hour
// costs if not --gpu-hour. The arguments are read again for each of them. A machine on which nothing fits
// has its row, and the reason. FSDP_ERR_OPTION, FSDP_ERR_INPUT.
fsdp_status fsdp_machines_compare(const fsdp_options *options, int argc, char **argv, fsdp_error *error);
