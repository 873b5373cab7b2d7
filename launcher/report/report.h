// What a plan says, for a person and for a program: units, memory with the owner of the peak, traffic,
// verdict.
#pragma once

#include "runtime/plan/text/plan_json.h"

#include <stdio.h>

// The plan as a page of text. `model_name` is what the user called the model.
void fsdp_report_print(const fsdp_plan *plan, const char *model_name, FILE *out);

// What a search or a table of plans is for: a line with the model and its sequences.
void fsdp_report_print_model(const char *model_name, const fsdp_model_config *model, int64_t seq, FILE *out);

// The plan as an object, in the shape that fsdp_plan --json prints. A new reference.
json_t *fsdp_report_json(const fsdp_plan *plan);

#define FSDP_REPORT_HINT_BYTES 512

// A line of advice if a very large unit stays gathered, and one if another placement of activations sends
// less; "" if there is nothing to say.
void fsdp_report_hints(const fsdp_plan *plan, char out[2][FSDP_REPORT_HINT_BYTES]);
