// The GLM-4.5 family, as Transformers' Glm4MoeForCausalLM: the router of DeepSeek-V3 (sigmoid, a bias that
// chooses, groups) beside ordinary attention, shared experts, and first layers without experts.
#include "models/decoder.h"

#include <stddef.h>

// ---- Presets: published shapes

#define GLM4_MOE                                                                                             \
  .norm_eps = 1e-5, .rope_theta = 1e6, .rope_factor = 1, .initializer_range = 0.02, .qkv_bias = true,        \
  .router_f32 = true, .route_bias = true, .route_score = FSDP_ROUTE_SIGMOID, .normalises_routes = true,      \
  .route_groups = 1, .route_groups_kept = 1, .route_group_best = 2

static const fsdp_preset presets[] = {
    {"tiny-glm4-moe",
     {GLM4_MOE, .vocab_size = 256, .hidden_size = 64, .intermediate_size = 192, .num_layers = 3,
      .num_heads = 4, .num_kv_heads = 2, .head_dim = 16, .rotary_dim = 8, .max_position_embeddings = 4096,
      .experts = 8, .expert_slots = 2, .expert_size = 48, .shared_expert_size = 48, .first_expert_layer = 1,
      .route_scale = 1}},
    {"glm-4.5-air",
     {GLM4_MOE, .vocab_size = 151552, .hidden_size = 4096, .intermediate_size = 10944, .num_layers = 46,
      .num_heads = 96, .num_kv_heads = 8, .head_dim = 128, .rotary_dim = 64,
      .max_position_embeddings = 131072, .experts = 128, .expert_slots = 8, .expert_size = 1408,
      .shared_expert_size = 1408, .first_expert_layer = 1, .route_scale = 1}},
    {NULL, {0}},
};

// ---- The configuration

static void refuse_others(fsdp_fields *f, const json_t *root) {
  fsdp_fields_only_text(f, root, "scoring_func", "sigmoid");
  fsdp_fields_only_text(f, root, "topk_method", "noaux_tc");
}

static void read_config(fsdp_fields *f, const json_t *root, fsdp_model_config *c) {
  refuse_others(f, root);
  fsdp_decoder_read(f, root, c);
  c->qkv_bias = fsdp_fields_bool(f, root, "attention_bias", false);
  c->qk_norm = fsdp_fields_bool(f, root, "use_qk_norm", false);
  c->expert_size = fsdp_fields_count(f, root, "moe_intermediate_size", 1408, 1 << 24);
  c->shared_expert_size = fsdp_fields_count(f, root, "n_shared_experts", 1, 1 << 10) * c->expert_size;
  c->first_expert_layer = fsdp_fields_whole(f, root, "first_k_dense_replace", 1, INT32_MAX);
  c->route_score = FSDP_ROUTE_SIGMOID;
  c->route_bias = true;
  c->route_groups = fsdp_fields_count(f, root, "n_group", 1, INT32_MAX);
  c->route_groups_kept = fsdp_fields_count(f, root, "topk_group", 1, INT32_MAX);
  c->route_group_best = 2;
  c->normalises_routes = fsdp_fields_bool(f, root, "norm_topk_prob", true);
  c->route_scale = fsdp_fields_positive(f, root, "routed_scaling_factor", 1.0);
}

static void print_config(const fsdp_model_config *c, json_t *root) {
  fsdp_decoder_print(c, root);
  json_object_set_new(root, "attention_bias", json_boolean(c->qkv_bias));
  json_object_set_new(root, "use_qk_norm", json_boolean(c->qk_norm));
  json_object_set_new(root, "moe_intermediate_size", json_integer(c->expert_size));
  json_object_set_new(root, "n_shared_experts", json_integer(c->shared_expert_size / c->expert_size));
  json_object_set_new(root, "first_k_dense_replace", json_integer(c->first_expert_layer));
  json_object_set_new(root, "n_group", json_integer(c->route_groups));
  json_object_set_new(root, "topk_group", json_integer(c->route_groups_kept));
  json_object_set_new(root, "norm_topk_prob", json_boolean(c->normalises_routes));
  json_object_set_new(root, "routed_scaling_factor", json_real(c->route_scale));
  json_object_set_new(root, "partial_rotary_factor",
                      json_real(c->rotary_dim ? (double)c->rotary_dim / (double)c->head_dim : 1.0));
}

static const fsdp_decoder decoder = {.prefix = "Glm4Moe",
                                     .attention = "Glm4MoeAttention",
                                     .activation = "SiLUActivation",
                                     .kv_heads_default = 8,
                                     .positions_default = 131072,
                                     .norm_eps_default = 1e-5,
                                     .rotary_share = 0.5,
                                     .experts_key = "n_routed_experts",
                                     .experts_default = 128,
                                     .expert_slots_default = 8,
                                     .block_class = "MoE",
                                     .router_class = "TopkRouter",
                                     .shared_name = "shared_experts",
                                     .routes_in_f32 = true,
                                     .experts_first = true};

const fsdp_family fsdp_family_glm4_moe = {
    .block_class = "Glm4MoeDecoderLayer",
    .presets = presets,
    .keys_without_numbers = fsdp_decoder_keys_without_numbers,
    .decoder = &decoder,
    .skips_extra_layers = true,
    .read = read_config,
    .print = print_config,
    .parameter_count = fsdp_decoder_parameter_count,
    .flops_per_token = fsdp_decoder_flops_per_token,
    .build = fsdp_decoder_build,
};
