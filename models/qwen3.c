// The Qwen3 family, as Transformers' Qwen3ForCausalLM: Llama's decoder with norms of the heads of q and k,
// and windows in the last layers.
#include "models/decoder.h"
#include "models/window.h"

static const fsdp_preset presets[] = {
    {"qwen3-8b",
     {FSDP_DECODER_SHAPE(4096, 12288, 36, 32, 8, 128), .vocab_size = 151936, .max_position_embeddings = 40960,
      .norm_eps = 1e-6, .rope_theta = 1e6, .initializer_range = 0.02}},
    {NULL, {0}},
};

static const fsdp_field fields[] = {FSDP_FIELD_MUST_BE_FALSE("attention_bias", "biases"), {0}};

static const fsdp_decoder decoder = {.prefix = "Qwen3",
                                     .qk_norm = true,
                                     .kv_heads_default = 32,
                                     .head_dim_default = 128,
                                     .positions_default = 32768,
                                     .fields = fields,
                                     .read = fsdp_window_read,
                                     .print = fsdp_window_print};

const fsdp_family fsdp_family_qwen3 = {FSDP_DECODER_FAMILY(presets, decoder),
                                       .block_class = "Qwen3DecoderLayer"};
