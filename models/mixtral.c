// The Mixtral family, as Transformers' MixtralForCausalLM: Mistral's decoder with routed experts.
#include "models/decoder.h"

// ---- Presets: published shapes

#define MIXTRAL                                                                                              \
  .norm_eps = 1e-5, .rope_theta = 1e6, .initializer_range = 0.02, .experts = 8, .expert_slots = 2,           \
  .normalises_routes = true
#define SHAPE(C, I, L, H, K) FSDP_DECODER_SHAPE(C, I, L, H, K, (C) / (H)), .expert_size = (I)

static const fsdp_preset presets[] = {
    {"tiny-mixtral", {MIXTRAL, SHAPE(64, 96, 2, 4, 2), .vocab_size = 256, .max_position_embeddings = 4096}},
    {"mixtral-8x7b",
     {MIXTRAL, SHAPE(4096, 14336, 32, 32, 8), .vocab_size = 32000, .max_position_embeddings = 32768}},
    // The instruction-tuned one has 32,768 words, and the base model 32,000.
    {"mixtral-8x22b",
     {MIXTRAL, SHAPE(6144, 16384, 56, 48, 8), .vocab_size = 32768, .max_position_embeddings = 65536}},
    {NULL, {0}},
};

// ---- The configuration

static const fsdp_field fields[] = {FSDP_FIELD("sliding_window", COUNT_OR_NONE, window, 0, INT32_MAX), {0}};

static void read_more(fsdp_fields *f, const json_t *root, fsdp_model_config *c) {
  (void)f, (void)root;
  c->normalises_routes = true;
}

static const char *const expert_names[] = {
    "block_sparse_moe.experts.*.w1.weight", "block_sparse_moe.experts.*.w3.weight",
    "block_sparse_moe.experts.*.w2.weight", "block_sparse_moe.gate.weight"};

static const fsdp_decoder decoder = {.prefix = "Mixtral",
                                     .kv_heads_default = 8,
                                     .positions_default = 131072,
                                     .norm_eps_default = 1e-5,
                                     .rope_theta_default = 1e6,
                                     .experts_key = "num_local_experts",
                                     .other_experts_key = "num_experts",
                                     .experts_default = 8,
                                     .expert_slots_default = 2,
                                     .aux_coef_default = 1e-3,
                                     .expert_names = expert_names,
                                     .fields = fields,
                                     .read = read_more};

const fsdp_family fsdp_family_mixtral = {FSDP_DECODER_FAMILY(presets, decoder),
                                         .block_class = "MixtralDecoderLayer"};
