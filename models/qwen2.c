// The Qwen2 family, Qwen2.5 too, as Transformers' Qwen2ForCausalLM: Llama's decoder with biases of q, k and
// v, and windows in the last layers.
#include "models/decoder.h"
#include "models/window.h"

// ---- Presets: published shapes

#define QWEN25                                                                                               \
  .vocab_size = 152064, .max_position_embeddings = 131072, .rope_theta = 1e6, .initializer_range = 0.02

static const fsdp_preset presets[] = {
    {"qwen2.5-7b", {QWEN25, FSDP_DECODER_SHAPE(3584, 18944, 28, 28, 4, 128), .norm_eps = 1e-6}},
    {"qwen2.5-14b", {QWEN25, FSDP_DECODER_SHAPE(5120, 13824, 48, 40, 8, 128), .norm_eps = 1e-5}},
    {NULL, {0}},
};

// ---- The configuration

static void read_more(fsdp_fields *f, const json_t *root, fsdp_model_config *c) {
  fsdp_fields_only_bool(f, root, "use_mrope", false, "positions of several dimensions");
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
