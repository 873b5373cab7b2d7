// The Qwen3 family, as Transformers' Qwen3ForCausalLM: Llama's decoder with norms of the heads of q and k,
// and windows in the last layers.
#include "models/decoder.h"
#include "models/window.h"

#include <stddef.h>

static const fsdp_preset presets[] = {
    {"qwen3-8b",
     {.vocab_size = 151936,
      .hidden_size = 4096,
      .intermediate_size = 12288,
      .num_layers = 36,
      .num_heads = 32,
      .num_kv_heads = 8,
      .head_dim = 128,
      .max_position_embeddings = 40960,
      .norm_eps = 1e-6,
      .rope_theta = 1e6,
      .rope_factor = 1,
      .initializer_range = 0.02}},
    {NULL, {0}},
};

static void read_config(fsdp_fields *f, const json_t *root, fsdp_model_config *c) {
  fsdp_fields_only_false(f, root, "attention_bias", "biases");
  fsdp_decoder_read(f, root, c);
  fsdp_window_read(f, root, c);
}

static void print_config(const fsdp_model_config *c, json_t *root) {
  fsdp_decoder_print(c, root);
  json_object_set_new(root, "attention_bias", json_false());
  fsdp_window_print(c, root);
}

static const fsdp_decoder decoder = {.prefix = "Qwen3",
                                     .attention = "Qwen3Attention",
                                     .activation = "SiLUActivation",
                                     .qk_norm = true,
                                     .kv_heads_default = 32,
                                     .head_dim_default = 128,
                                     .positions_default = 32768};

const fsdp_family fsdp_family_qwen3 = {
    .block_class = "Qwen3DecoderLayer",
    .presets = presets,
    .keys_without_numbers = fsdp_decoder_keys_without_numbers,
    .decoder = &decoder,
    .read = read_config,
    .print = print_config,
    .parameter_count = fsdp_decoder_parameter_count,
    .flops_per_token = fsdp_decoder_flops_per_token,
    .build = fsdp_decoder_build,
};
