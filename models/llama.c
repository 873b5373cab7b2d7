// The Llama family, as Transformers' LlamaForCausalLM.
#include "models/decoder.h"

// ---- Presets: published shapes

#define LLAMA2                                                                                               \
  .vocab_size = 32000, .max_position_embeddings = 4096, .norm_eps = 1e-5, .rope_theta = 1e4,                 \
  .initializer_range = 0.02
#define LLAMA3 .vocab_size = 128256, .norm_eps = 1e-5, .rope_theta = 5e5, .initializer_range = 0.02
// The 3.0 release (llama3-8b, llama3-70b) has 8k positions and plain RoPE; 405B came with 3.1 and its
// scaling.
#define LLAMA3_0 LLAMA3, .max_position_embeddings = 8192
#define LLAMA3_1                                                                                             \
  LLAMA3, .max_position_embeddings = 131072, .rope_scaling = FSDP_ROPE_LLAMA3, .rope_factor = 8,             \
          .rope_low_freq_factor = 1, .rope_high_freq_factor = 4, .rope_original_max_position = 8192
#define SHAPE(C, I, L, H, K) FSDP_DECODER_SHAPE(C, I, L, H, K, (C) / (H))

static const fsdp_preset presets[] = {
    {"tiny",
     {SHAPE(128, 352, 4, 4, 2), .vocab_size = 256, .max_position_embeddings = 4096, .norm_eps = 1e-5,
      .rope_theta = 1e4, .initializer_range = 0.02}},
    {"llama-1b",
     {SHAPE(4096, 11008, 4, 32, 32), .vocab_size = 32000, .max_position_embeddings = 2048, .norm_eps = 1e-6,
      .rope_theta = 1e4, .initializer_range = 0.02}},
    {"llama2-7b", {LLAMA2, SHAPE(4096, 11008, 32, 32, 32)}},
    {"llama2-13b", {LLAMA2, SHAPE(5120, 13824, 40, 40, 40)}},
    {"llama2-70b", {LLAMA2, SHAPE(8192, 28672, 80, 64, 8)}},
    {"llama3-8b", {LLAMA3_0, SHAPE(4096, 14336, 32, 32, 8)}},
    {"llama3-70b", {LLAMA3_0, SHAPE(8192, 28672, 80, 64, 8)}},
    {"llama3-405b", {LLAMA3_1, SHAPE(16384, 53248, 126, 128, 8)}},
    {NULL, {0}},
};

// ---- The configuration

// Old conversions stored the inverse frequencies among the weights.
static const char *const buffers[] = {"rotary_emb.inv_freq", NULL};

static const fsdp_field fields[] = {FSDP_FIELD_MUST_BE_FALSE("attention_bias", "biases"),
                                    FSDP_FIELD_MUST_BE_FALSE("mlp_bias", "biases"),
                                    {0}};

// The class names are those of the releases in which SDPA was a class of its own.
static const fsdp_decoder decoder = {.prefix = "Llama",
                                     .attention = "LlamaSdpaAttention",
                                     .activation = "SiLU",
                                     .rotary_in_attention = true,
                                     .fields = fields,
                                     .positions_default = 2048};

const fsdp_family fsdp_family_llama = {FSDP_DECODER_FAMILY(presets, decoder),
                                       .block_class = "LlamaDecoderLayer", .buffers = buffers};
