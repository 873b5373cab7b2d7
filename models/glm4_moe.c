// The GLM-4.5 family, as Transformers' Glm4MoeForCausalLM: the router of DeepSeek-V3 (sigmoid, a bias that
// chooses, groups) beside ordinary attention, shared experts, and first layers without experts.
#include "models/decoder.h"

#include <math.h>

// ---- Presets: published shapes

#define GLM4_MOE                                                                                             \
  .norm_eps = 1e-5, .rope_theta = 1e6, .initializer_range = 0.02, .qkv_bias = true, .router_f32 = true,      \
  .route_bias = true, .route_score = FSDP_ROUTE_SIGMOID, .normalises_routes = true, .route_groups = 1,       \
  .route_groups_kept = 1, .route_group_best = 2

static const fsdp_preset presets[] = {
    {"tiny-glm4-moe",
     {GLM4_MOE, FSDP_DECODER_SHAPE(64, 192, 3, 4, 2, 16), .vocab_size = 256, .rotary_dim = 8,
      .max_position_embeddings = 4096, .experts = 8, .expert_slots = 2, .expert_size = 48,
      .shared_expert_size = 48, .first_expert_layer = 1, .route_scale = 1}},
    {"glm-4.5-air",
     {GLM4_MOE, FSDP_DECODER_SHAPE(4096, 10944, 46, 96, 8, 128), .vocab_size = 151552, .rotary_dim = 64,
      .max_position_embeddings = 131072, .experts = 128, .expert_slots = 8, .expert_size = 1408,
      .shared_expert_size = 1408, .first_expert_layer = 1, .route_scale = 1}},
    {NULL, {0}},
};

// ---- The configuration

static const fsdp_field fields[] = {
    FSDP_FIELD("attention_bias", BOOL, qkv_bias, false, 0),
    FSDP_FIELD("use_qk_norm", BOOL, qk_norm, false, 0),
    FSDP_FIELD("moe_intermediate_size", COUNT, expert_size, 1408, 1 << 24),
    FSDP_FIELD("n_shared_experts", COUNT, shared_expert_size, 1, 1 << 10), // of expert_size each: below
    FSDP_FIELD("first_k_dense_replace", WHOLE, first_expert_layer, 1, INT32_MAX),
    FSDP_FIELD("n_group", COUNT, route_groups, 1, INT32_MAX),
    FSDP_FIELD("topk_group", COUNT, route_groups_kept, 1, INT32_MAX),
    FSDP_FIELD("norm_topk_prob", BOOL, normalises_routes, true, 0),
    FSDP_FIELD("routed_scaling_factor", POSITIVE, route_scale, 1, 0),
    {0}};

static void read_more(fsdp_fields *f, const json_t *root, fsdp_model_config *c) {
  fsdp_fields_only_text(f, root, "scoring_func", "sigmoid");
  fsdp_fields_only_text(f, root, "topk_method", "noaux_tc");
  c->shared_expert_size *= c->expert_size;
  c->route_score = FSDP_ROUTE_SIGMOID;
  c->route_bias = true;
  c->route_group_best = 2;
}

// The part of a head that is rotated, of which the product with head_dim is read back as rotary_dim, and not
// rounded to less.
static double rotary_share(const fsdp_model_config *c) {
  const double width = (double)c->head_dim, share = c->rotary_dim ? (double)c->rotary_dim / width : 1;
  return (int64_t)(width * share) < c->rotary_dim ? nextafter(share, 1) : share;
}

static void print_more(const fsdp_model_config *c, json_t *root) {
  json_object_set_new(root, "n_shared_experts", json_integer(c->shared_expert_size / c->expert_size));
  json_object_set_new(root, "partial_rotary_factor", json_real(rotary_share(c)));
}

static const fsdp_decoder decoder = {.prefix = "Glm4Moe",
                                     .kv_heads_default = 8,
                                     .positions_default = 131072,
                                     .norm_eps_default = 1e-5,
                                     .rotary_share = 0.5,
                                     .experts_key = "n_routed_experts",
                                     .other_experts_key = "num_local_experts",
                                     .experts_default = 128,
                                     .expert_slots_default = 8,
                                     .block_class = "MoE",
                                     .router_class = "TopkRouter",
                                     .shared_name = "shared_experts",
                                     .routes_in_f32 = true,
                                     .experts_first = true,
                                     .fields = fields,
                                     .read = read_more,
                                     .print = print_more};

const fsdp_family fsdp_family_glm4_moe = {FSDP_DECODER_FAMILY(presets, decoder),
                                          .block_class = "Glm4MoeDecoderLayer", .skips_extra_layers = true};
