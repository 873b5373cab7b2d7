// How many steps a planned run has: from --tokens, from the data and --num-epochs, from --max-steps.
#pragma once

#include "launcher/options/options.h"
#include "launcher/report/price.h"
#include "launcher/setup/setup.h"

// Steps of a run of `global_batch` sequences a step: the least of what --tokens, --data with --num-epochs,
// and --max-steps allow; *steps is 0 if none of them is given. The data is opened and counted as training
// would, but not verified. `model`: of the plan; `setup` says where its folder is. FSDP_ERR_INPUT, as
// training would fail.
fsdp_status fsdp_run_length_find(const fsdp_options *options, const fsdp_setup *setup,
                                 const fsdp_model_config *model, int64_t global_batch, int64_t *steps,
                                 fsdp_error *error);

// Prices a step of `setup`'s plan by its profile, and the run, on the nodes that `options` plan for. As
// fsdp_price_report_create and the above.
fsdp_status fsdp_run_length_price(const fsdp_options *options, const fsdp_setup *setup,
                                  fsdp_price_report *report, fsdp_error *error);
