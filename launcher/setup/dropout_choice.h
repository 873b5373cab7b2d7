// The rates of dropout.
#pragma once

#include "launcher/options/options.h"
#include "runtime/base/status.h"
#include "runtime/plan/plan.h"

// --dropout and --attention-dropout, which may ask for those of the model's configuration. FSDP_ERR_OPTION
// for what is no rate, or if that has none.
fsdp_status fsdp_dropout_choose(const fsdp_options *options, const fsdp_model_config *model,
                                fsdp_dropout *rates, fsdp_error *error);
