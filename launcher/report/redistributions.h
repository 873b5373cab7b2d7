// The changes of placement that ops and rules cause in a micro-batch: whose, over which axes, what they send.
#pragma once

#include "runtime/plan/plan.h"

#include <jansson.h>
#include <stdio.h>

// A table of them, alike ones of all layers in one row; nothing if there are none.
void fsdp_redistributions_print(const fsdp_plan *plan, FILE *out);

// The same rows as an array. A new reference.
json_t *fsdp_redistributions_json(const fsdp_plan *plan);
