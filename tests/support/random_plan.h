// Random configurations of plans: small models, every strategy and setting.
#pragma once

#include "runtime/plan/plan.h"
#include "tests/support/random_program.h"

// A configuration that fsdp_plan_create accepts.
fsdp_plan_config random_plan_config(random_source *random);

// One line that describes it, for messages.
void describe_plan_config(const fsdp_plan_config *config, char *out, size_t out_bytes);
