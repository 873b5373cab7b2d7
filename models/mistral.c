// The Mistral family, as Transformers' MistralForCausalLM: Llama's decoder, and a window in every layer.
#include "models/decoder.h"

// Version 0.1; later ones have no window.
static const fsdp_preset presets[] = {
    {"mistral-7b",
     {FSDP_DECODER_SHAPE(4096, 14336, 32, 32, 8, 128), .vocab_size = 32000, .max_position_embeddings = 32768,
      .norm_eps = 1e-5, .rope_theta = 1e4, .initializer_range = 0.02, .window = 4096}},
    {NULL, {0}},
};

static const fsdp_field fields[] = {FSDP_FIELD("sliding_window", COUNT_OR_NONE, window, 4096, INT32_MAX),
                                    {0}};

static void refuse_types(fsdp_fields *f, const json_t *root, fsdp_model_config *c) {
  (void)c;
  const json_t *types = fsdp_fields_present(root, "layer_types");
  if (types)
    fsdp_fields_refuse(f, "layer_types", types,
                       "but all layers have the same window here (Transformers reads such a file as "
                       "\"ministral\"); use a model without this list");
}

static const fsdp_decoder decoder = {.prefix = "Mistral",
                                     .kv_heads_default = 8,
                                     .positions_default = 131072,
                                     .fields = fields,
                                     .read = refuse_types};

const fsdp_family fsdp_family_mistral = {FSDP_DECODER_FAMILY(presets, decoder),
                                         .block_class = "MistralDecoderLayer"};
