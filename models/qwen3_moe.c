// The Qwen3-MoE family, as Transformers' Qwen3MoeForCausalLM: Qwen3's decoder with routed experts, in all
// layers or in some.
#include "models/decoder.h"

// ---- Presets: published shapes

#define QWEN3_MOE                                                                                            \
  .max_position_embeddings = 40960, .norm_eps = 1e-6, .rope_theta = 1e6, .initializer_range = 0.02,          \
  .normalises_routes = true

static const fsdp_preset presets[] = {
    {"tiny-qwen3-moe",
     {QWEN3_MOE, FSDP_DECODER_SHAPE(64, 192, 2, 4, 2, 16), .vocab_size = 256, .experts = 8, .expert_slots = 4,
      .expert_size = 48}},
    {"qwen3-30b-a3b",
     {QWEN3_MOE, FSDP_DECODER_SHAPE(2048, 6144, 48, 32, 4, 128), .vocab_size = 151936, .experts = 128,
      .expert_slots = 8, .expert_size = 768}},
    {"qwen3-235b-a22b",
     {QWEN3_MOE, FSDP_DECODER_SHAPE(4096, 12288, 94, 64, 4, 128), .vocab_size = 151936, .experts = 128,
      .expert_slots = 8, .expert_size = 1536}},
    {NULL, {0}},
};

// ---- The configuration

static const fsdp_field fields[] = {FSDP_FIELD_MUST_BE_FALSE("attention_bias", "biases"),
                                    FSDP_FIELD_MUST_BE_FALSE("use_sliding_window", "windows of this family"),
                                    FSDP_FIELD("moe_intermediate_size", COUNT, expert_size, 768, 1 << 24),
                                    FSDP_FIELD("norm_topk_prob", BOOL, normalises_routes, false, 0),
                                    {0}};

static const fsdp_decoder decoder = {.prefix = "Qwen3Moe",
                                     .qk_norm = true,
                                     .kv_heads_default = 4,
                                     .positions_default = 32768,
                                     .experts_key = "num_experts",
                                     .other_experts_key = "num_local_experts",
                                     .experts_default = 128,
                                     .expert_slots_default = 8,
                                     .aux_coef_default = 1e-3,
                                     .experts_first = true,
                                     .lists_dense_layers = true,
                                     .fields = fields};

const fsdp_family fsdp_family_qwen3_moe = {FSDP_DECODER_FAMILY(presets, decoder),
                                           .block_class = "Qwen3MoeDecoderLayer"};
