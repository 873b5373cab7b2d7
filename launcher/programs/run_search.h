// fsdp_plan --search.
#pragma once

#include "launcher/options/options.h"

// Searches, prints what was found and writes --save-plan. FSDP_ERR_CAPACITY, with the least memory and the
// nearest change, if nothing fits. The options become those of the best plan.
fsdp_status fsdp_search_and_print(fsdp_options *options, fsdp_error *error);
