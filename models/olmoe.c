// The OLMoE family, as Transformers' OlmoeForCausalLM: Llama's decoder with norms of all heads of q and of k,
// and routed experts.
#include "models/decoder.h"

// ---- Presets: published shapes

#define OLMOE                                                                                                \
  .max_position_embeddings = 4096, .norm_eps = 1e-5, .rope_theta = 1e4, .initializer_range = 0.02,           \
  .padding_token = 2

static const fsdp_preset presets[] = {
    {"tiny-olmoe",
     {OLMOE, FSDP_DECODER_SHAPE(64, 48, 2, 4, 4, 16), .vocab_size = 256, .expert_size = 48, .experts = 8,
      .expert_slots = 4}},
    {"olmoe-1b-7b",
     {OLMOE, FSDP_DECODER_SHAPE(2048, 1024, 16, 16, 16, 128), .vocab_size = 50304, .expert_size = 1024,
      .experts = 64, .expert_slots = 8}},
    {NULL, {0}},
};

// ---- The configuration

static const fsdp_field fields[] = {FSDP_FIELD_MUST_BE_FALSE("attention_bias", "biases"), {0}};

static void read_more(fsdp_fields *f, const json_t *root, fsdp_model_config *c) {
  const json_t *clip = fsdp_fields_present(root, "clip_qkv");
  if (clip) fsdp_fields_refuse(f, "clip_qkv", clip, "but q, k and v are not clipped here; it must be null");
  c->normalises_routes = fsdp_fields_bool(f, root, "norm_topk_prob", false);
  if (!f->status && c->num_kv_heads != c->num_heads)
    fsdp_fields_refuse(f, "num_key_value_heads", fsdp_fields_present(root, "num_key_value_heads"),
                       "but the norm of all heads of k must be as wide as that of q; it must be "
                       "num_attention_heads");
  if (!f->status && c->num_heads * c->head_dim != c->hidden_size)
    fsdp_fields_refuse(f, "head_dim", fsdp_fields_present(root, "head_dim"),
                       "but the norms of q and k are as wide as hidden_size; it must be hidden_size over "
                       "num_attention_heads");
  // Transformers' padding token is 1 unless the file says otherwise, or null.
  if (!json_object_get(root, "pad_token_id") && c->vocab_size > 1) c->padding_token = 2;
}

static void print_more(const fsdp_model_config *c, json_t *root) {
  if (!c->padding_token) json_object_set_new(root, "pad_token_id", json_null());
  json_object_set_new(root, "norm_topk_prob", json_boolean(c->normalises_routes));
}

static const fsdp_decoder decoder = {.prefix = "Olmoe",
                                     .qk_norm = true,
                                     .wide_qk_norm = true,
                                     .positions_default = 4096,
                                     .norm_eps_default = 1e-5,
                                     .experts_key = "num_experts",
                                     .other_experts_key = "num_local_experts",
                                     .experts_default = 64,
                                     .expert_slots_default = 8,
                                     .aux_coef_default = 1e-2,
                                     .fields = fields,
                                     .read = read_more,
                                     .print = print_more};

const fsdp_family fsdp_family_olmoe = {FSDP_DECODER_FAMILY(presets, decoder),
                                       .block_class = "OlmoeDecoderLayer"};
