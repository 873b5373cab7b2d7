// `--recompute auto` and `--offload-activations auto` on a machine with a profile.
#pragma once

#include "launcher/setup/capacity.h"
#include "runtime/plan/saving_choice.h"

// config->saving is a choice by a backend's ratios for the configuration `given`. Searches what else fits the
// limits, prices both whole on the limits' profile, and sets config->saving to the faster. Errors of pricing.
fsdp_status fsdp_saving_price(const fsdp_plan_config *given, const fsdp_saving_choice *choice,
                              const fsdp_limits *limits, fsdp_plan_config *config, fsdp_error *error);
