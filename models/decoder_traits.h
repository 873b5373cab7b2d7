// What distinguishes the decoders of Llama's kind (decoder.h), apart from numbers in their configurations.
#pragma once

#include "models/fields.h"
#include "models/graph/graph.h"

#include <stdio.h>

typedef struct fsdp_decoder {
  // Names of module classes: the prefix of most ("Llama" of LlamaModel, LlamaMLP, ...), and two in full, of
  // which NULL is "Attention" behind the prefix and "SiLUActivation".
  const char *prefix, *attention, *activation;
  bool rotary_in_attention; // each attention prints a rotary_emb too
  bool qkv_bias;            // q_proj, k_proj and v_proj have biases, in every configuration
  bool qk_norm;             // RMSNorm of each head of q and of k, before RoPE, in every configuration
  // What an absent key means in Transformers; 0: num_attention_heads, and hidden_size over these.
  int64_t kv_heads_default, head_dim_default;
  int64_t positions_default; // of max_position_embeddings
  double norm_eps_default;   // of rms_norm_eps; 0: 1e-6
  double rope_theta_default; // of rope_theta; 0: 1e4
  // The part of a head that is rotated if partial_rotary_factor is absent; 0: always all of it.
  double rotary_share;
  // Layers have routed experts (experts.h): the key that counts them (NULL: none), its other name (NULL: it
  // has none), and what it and num_experts_per_tok mean if they are absent.
  const char *experts_key, *other_experts_key;
  int64_t experts_default, expert_slots_default;
  // Class names behind the prefix of what holds router and experts, and of the router, and the name of a
  // shared expert's module. NULL: "SparseMoeBlock", "TopKRouter", "shared_expert".
  const char *block_class, *router_class, *shared_name;
  double aux_coef_default; // of router_aux_loss_coef; 0: the family has no such loss in Transformers
  bool routes_in_f32;      // logits of the router are fp32
  // The layers without experts are those of decoder_sparse_step and mlp_only_layers.
  bool lists_dense_layers;
  // How weight files name an expert's gate, up and down, and the router, below the layer (stored.h). NULL: as
  // Qwen's.
  const char *const *expert_names;
  bool experts_first; // of a block's modules: else its router
  bool wide_qk_norm;  // qk_norm is of all heads together
  // Keys of the configuration that the family alone has (NULL: none), and what a table does not say of them,
  // done last: sizes of the decoder are read before. NULL: nothing.
  const fsdp_field *fields;
  void (*read)(fsdp_fields *fields, const json_t *root, fsdp_model_config *config);
  void (*print)(const fsdp_model_config *config, json_t *root);
} fsdp_decoder;

// "LlamaModel" of "Model", in the caller's buffer.
static inline const char *fsdp_decoder_class(const fsdp_decoder *decoder, const char *name,
                                             char out[FSDP_NAME_BYTES]) {
  snprintf(out, FSDP_NAME_BYTES, "%s%s", decoder->prefix, name);
  return out;
}
