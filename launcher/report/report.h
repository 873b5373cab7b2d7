// What a plan says, for a person and for a program: units, memory with the owner of the peak, traffic,
// verdict.
#pragma once

#include "runtime/plan/plan.h"

#include <jansson.h>
#include <stdio.h>

// The plan as a page of text. `model_name` is what the user called the model.
void fsdp_report_print(const fsdp_plan *plan, const char *model_name, FILE *out);

// The plan as an object, in the shape that fsdp_plan --json prints. A new reference.
json_t *fsdp_report_json(const fsdp_plan *plan);

// Axes with their sizes, in order; those of one rank but data and fsdp are omitted. A new reference.
json_t *fsdp_report_mesh_json(const fsdp_mesh *mesh);

// "linear_backward_weight of model.layers.3.mlp" or "all_gather of unit model": what the instruction at
// `position` does and for whom. Returns `out`.
const char *fsdp_report_instr(const fsdp_plan *plan, int position, char *out, size_t out_bytes);

// "instruction 812 (backward of the last micro-batch): linear_backward_weight of model.layers.3.mlp". Returns
// `out`.
const char *fsdp_report_position(const fsdp_plan *plan, int position, char *out, size_t out_bytes);

#define FSDP_REPORT_HINT_BYTES 512

// A line of advice if a very large unit stays gathered, and one if another placement of activations sends
// less; "" if there is nothing to say.
void fsdp_report_hints(const fsdp_plan *plan, char out[2][FSDP_REPORT_HINT_BYTES]);
