// Propagation as the options ask for it: over a model's operators or those of --graph.
#pragma once

#include "launcher/options/options.h"

// --print-strategies and --graph: propagates and prints, without a plan. Warnings go to standard error.
fsdp_status fsdp_propagate_and_print(const fsdp_options *options, fsdp_error *error);
