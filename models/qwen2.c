// The Qwen2 family, Qwen2.5 too, as Transformers' Qwen2ForCausalLM: Llama's decoder with biases of q, k and
// v, and windows in the last layers.
#include "models/decoder.h"
#include "models/window.h"

// ---- Presets: published shapes

#define QWEN25                                                                                               \
  .vocab_size = 152064, .max_position_embeddings = 131072, .rope_theta = 1e6, .initializer_range = 0.02,     \
  .head_dim = 128

static const fsdp_preset presets[] = {
    {"qwen2.5-7b",
     {QWEN25, .hidden_size = 3584, .intermediate_size = 18944, .num_layers = 28, .num_heads = 28,
      .num_kv_heads = 4, .norm_eps = 1e-6}},
    {"qwen2.5-14b",
     {QWEN25, .hidden_size = 5120, .intermediate_size = 13824, .num_layers = 48, .num_heads = 40,
      .num_kv_heads = 8, .norm_eps = 1e-5}},
    {NULL, {0}},
};

// ---- The configuration

static void read_more(fsdp_fields *f, const json_t *root, fsdp_model_config *c) {
  fsdp_fields_only_false(f, root, "use_mrope", "positions of several dimensions");
  fsdp_window_read(f, root, c);
}

static const fsdp_decoder decoder = {.prefix = "Qwen2",
                                     .qkv_bias = true,
                                     .kv_heads_default = 32,
                                     .positions_default = 32768,
                                     .read = read_more,
                                     .print = fsdp_window_print};

const fsdp_family fsdp_family_qwen2 = {FSDP_DECODER_FAMILY(presets, decoder),
                                       .block_class = "Qwen2DecoderLayer"};
