// The Qwen2-MoE family, as Transformers' Qwen2MoeForCausalLM: Qwen2's decoder with routed experts, in all
// layers or in some, and beside them one that every row goes to.
#include "models/decoder.h"

// ---- Presets: published shapes

#define QWEN2_MOE                                                                                            \
  .norm_eps = 1e-6, .rope_theta = 1e6, .initializer_range = 0.02, .qkv_bias = true,                          \
  .gates_shared_expert = true

static const fsdp_preset presets[] = {
    {"tiny-qwen2-moe",
     {QWEN2_MOE, FSDP_DECODER_SHAPE(64, 192, 2, 4, 2, 16), .vocab_size = 256, .max_position_embeddings = 4096,
      .experts = 8, .expert_slots = 2, .expert_size = 48, .shared_expert_size = 96}},
    {"qwen1.5-moe-a2.7b",
     {QWEN2_MOE, FSDP_DECODER_SHAPE(2048, 5632, 24, 16, 16, 128), .vocab_size = 151936,
      .max_position_embeddings = 8192, .experts = 60, .expert_slots = 4, .expert_size = 1408,
      .shared_expert_size = 5632}},
    {NULL, {0}},
};

// ---- The configuration

// Transformers gives a window to every other layer of the first ones, which no released model has.
static const fsdp_field fields[] = {
    FSDP_FIELD_MUST_BE_FALSE("use_sliding_window", "windows of this family"),
    FSDP_FIELD("qkv_bias", BOOL, qkv_bias, true, 0),
    FSDP_FIELD("moe_intermediate_size", COUNT, expert_size, 1408, 1 << 24),
    FSDP_FIELD("shared_expert_intermediate_size", COUNT, shared_expert_size, 5632, 1 << 24),
    FSDP_FIELD("norm_topk_prob", BOOL, normalises_routes, false, 0),
    {0}};

static void read_more(fsdp_fields *f, const json_t *root, fsdp_model_config *c) {
  const json_t *types = fsdp_fields_present(root, "layer_types");
  for (size_t i = 0; i < json_array_size(types); i++)
    if (!fsdp_fields_is_text(json_array_get(types, i), "full_attention"))
      fsdp_fields_refuse(f, "layer_types", types, "but only \"full_attention\" is supported in this family");
  c->gates_shared_expert = true;
}

static const fsdp_decoder decoder = {.prefix = "Qwen2Moe",
                                     .kv_heads_default = 16,
                                     .positions_default = 32768,
                                     .experts_key = "num_experts",
                                     .experts_default = 60,
                                     .expert_slots_default = 4,
                                     .aux_coef_default = 1e-3,
                                     .lists_dense_layers = true,
                                     .fields = fields,
                                     .read = read_more};

const fsdp_family fsdp_family_qwen2_moe = {FSDP_DECODER_FAMILY(presets, decoder),
                                           .block_class = "Qwen2MoeDecoderLayer"};
