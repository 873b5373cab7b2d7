// What a plan does with the activations that its layers save for the backward: bytes and names by fate, the
// work that is repeated, and what is offloaded though remaking it would be cheaper. Figures are of one
// micro-batch on one rank.
#pragma once

#include "runtime/plan/plan.h"

#include <jansson.h>
#include <stdio.h>

typedef struct fsdp_activations {
  int64_t kept_bytes, recomputed_bytes, offloaded_bytes; // of all layers
  double model_flops;                                    // of forward and backward, each op once
  double repeated_flops;                                 // of forward ops again in the backward
} fsdp_activations;

// Over all layers of the plan.
fsdp_activations fsdp_activations_of(const fsdp_plan *plan);

// The section of the plan's page, neighbouring layers that are alike folded into one.
void fsdp_activations_print(const fsdp_plan *plan, FILE *out);

// "kept 1.2 GB, recomputed 3.4 GB (2.1% of the FLOPs again), offloaded 0 B of the activations saved by 32
// layers"; false if everything is kept.
bool fsdp_activations_line(const fsdp_plan *plan, char *out, size_t out_bytes);

// The member "activations" of the plan's JSON. A new reference.
json_t *fsdp_activations_json(const fsdp_plan *plan);
