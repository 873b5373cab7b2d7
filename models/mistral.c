// The Mistral family, as Transformers' MistralForCausalLM: Llama's decoder, and a window in every layer.
#include "models/decoder.h"

#include <stddef.h>

// Version 0.1; later ones have no window.
static const fsdp_preset presets[] = {
    {"mistral-7b",
     {.vocab_size = 32000,
      .hidden_size = 4096,
      .intermediate_size = 14336,
      .num_layers = 32,
      .num_heads = 32,
      .num_kv_heads = 8,
      .head_dim = 128,
      .max_position_embeddings = 32768,
      .norm_eps = 1e-5,
      .rope_theta = 1e4,
      .rope_factor = 1,
      .initializer_range = 0.02,
      .window = 4096}},
    {NULL, {0}},
};

static void read_config(fsdp_fields *f, const json_t *root, fsdp_model_config *c) {
  fsdp_decoder_read(f, root, c);
  c->window = fsdp_fields_count_or_none(f, root, "sliding_window", 4096, INT32_MAX);
  const json_t *types = fsdp_fields_present(root, "layer_types");
  if (types)
    fsdp_fields_refuse(f, "layer_types", types,
                       "but all layers have the same window here (Transformers reads such a file as "
                       "\"ministral\"); use a model without this list");
}

static void print_config(const fsdp_model_config *c, json_t *root) {
  fsdp_decoder_print(c, root);
  json_object_set_new(root, "sliding_window", c->window ? json_integer(c->window) : json_null());
}

static const fsdp_decoder decoder = {.prefix = "Mistral",
                                     .attention = "MistralAttention",
                                     .activation = "SiLUActivation",
                                     .kv_heads_default = 8,
                                     .positions_default = 131072};

const fsdp_family fsdp_family_mistral = {
    .block_class = "MistralDecoderLayer",
    .presets = presets,
    .keys_without_numbers = fsdp_decoder_keys_without_numbers,
    .decoder = &decoder,
    .read = read_config,
    .print = print_config,
    .parameter_count = fsdp_decoder_parameter_count,
    .flops_per_token = fsdp_decoder_flops_per_token,
    .build = fsdp_decoder_build,
};
