// What a plan says, for a person and for a program: units, memory with the owner of the peak, traffic,
// verdict.
#pragma once

#include "runtime/plan/text/plan_json.h"

#include <stdio.h>

// The plan as a page of text. `model_name` is what the user called the model.
void fsdp_report_print(const fsdp_plan *plan, const char *model_name, FILE *out);

// The plan as an object, in the shape that fsdp_plan --json prints. A new reference.
json_t *fsdp_report_json(const fsdp_plan *plan);

// One line of advice if another placement of activations sends less; false if there is nothing to say.
bool fsdp_report_placement_hint(const fsdp_plan *plan, char *out, size_t out_bytes);

// One line of advice if a very large unit stays gathered, into `out`; false if there is nothing to say.
bool fsdp_report_hint(const fsdp_plan *plan, char *out, size_t out_bytes);
