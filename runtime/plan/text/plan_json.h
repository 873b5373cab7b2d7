// A plan as JSON, and how texts name its instructions.
#pragma once

#include "runtime/plan/plan.h"

#include <jansson.h>

// {model, mesh, batch, units, memory, comm, program, verified}. A new reference.
json_t *fsdp_plan_json(const fsdp_plan *plan);

// {"data": 2, "fsdp": 4}: axes data and fsdp, and others of several ranks. A new reference.
json_t *fsdp_mesh_json(const fsdp_mesh *mesh);

// "linear_backward_weight of model.layers.3.mlp" or "all_gather of unit model": what the instruction at
// `position` does and for whom. Returns `out`.
const char *fsdp_plan_print_instr(const fsdp_plan *plan, int position, char *out, size_t out_bytes);

// "instruction 812 (backward of the last micro-batch): linear_backward_weight of model.layers.3.mlp". Returns
// `out`.
const char *fsdp_plan_print_position(const fsdp_plan *plan, int position, char *out, size_t out_bytes);
