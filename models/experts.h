// Routed experts in the place of a layer's MLP, as the decoder builds them (decoder.h: experts_key).
//
//   x ─► gate ─► route ─► route_order            each row goes to q of e experts
//   x ────────► expert_up ─► expert_swiglu ─► expert_down ─► combine ─┐
//   x ────────► gate_up ─► swiglu ─► down ───────► shared_gate ─► shared_add    if there is a shared expert
//
// An expert is down(silu(gate x) * up x), its output counts by its weight. All experts of a layer are two
// parameters: gate_up_proj (E, 2I, C), of each expert the gate's rows and then those of up, and down_proj
// (E, C, I).
#pragma once

#include "models/fields.h"
#include "models/parts.h"

// Keys of the configuration that families share: the number of experts, num_experts_per_tok, which layers
// have experts, losses of the router. Refuses what asks for its noise. Sizes of the decoder are read before.
void fsdp_experts_read(fsdp_fields *fields, const json_t *root, fsdp_model_config *config);
void fsdp_experts_print(const fsdp_model_config *config, json_t *root);

// Parameters of a layer's router, of `count` of its experts and of its shared expert; a router's correction
// bias is not one.
int64_t fsdp_experts_parameter_count(const fsdp_model_config *config, int64_t count);

typedef struct fsdp_mlp_modules {
  int mlp, gate, up, down;
} fsdp_mlp_modules;

// An MLP as a module of `parent`, and y (N, C) of x (N, C) through it.
fsdp_mlp_modules fsdp_experts_mlp_tree(fsdp_parts *parts, int parent, const char *name, int64_t size);
int fsdp_experts_dense(fsdp_parts *parts, int x, const fsdp_mlp_modules *modules);

typedef struct fsdp_experts_modules {
  int block, gate, experts, shared_gate;
  fsdp_mlp_modules shared;
} fsdp_experts_modules;

// The module "mlp" of a layer.
fsdp_experts_modules fsdp_experts_module_tree(fsdp_parts *parts, int layer);

// Values that the routers of all layers add to; -1: none yet.
typedef struct fsdp_experts_sums {
  int sums, z, total;
} fsdp_experts_sums;

// y (N, C) of x (N, C).
int fsdp_experts_mlp(fsdp_parts *parts, int x, const fsdp_experts_modules *modules, fsdp_experts_sums *sums);

// The losses of the sums, if there are any: behind the layers, before the cross-entropy.
void fsdp_experts_losses(fsdp_parts *parts, int module, const fsdp_experts_sums *sums);
