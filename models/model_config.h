// The configuration of a model, of any family.
#pragma once

#include "models/graph/route_score.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct fsdp_family fsdp_family;

typedef enum fsdp_rope_scaling { FSDP_ROPE_DEFAULT, FSDP_ROPE_LINEAR, FSDP_ROPE_LLAMA3 } fsdp_rope_scaling;

#define FSDP_MODEL_LISTED_DENSE 256 // layers that can be named as dense one by one

// A plain value: it is copied freely and owns nothing. What a family does not have is 0. Compare two
// configurations by fsdp_model_differs. Between processes one travels as the JSON of fsdp_model_print, since
// the family is an address.
typedef struct fsdp_model_config {
  const fsdp_family *family; // static
  int64_t vocab_size, hidden_size, intermediate_size, num_layers;
  int64_t num_heads, num_kv_heads, head_dim;
  int64_t max_position_embeddings;
  double norm_eps;
  double initializer_range; // standard deviation of new weights
  bool tie_word_embeddings;
  int64_t padding_token; // 1 + the token whose embedding the positions that hold it do not train; 0: none
  double rope_theta;
  fsdp_rope_scaling rope_scaling;
  double rope_factor, rope_low_freq_factor, rope_high_freq_factor; // linear uses the first, llama3 all
  int64_t rope_original_max_position;
  // In layers from `first_window_layer` on, a position attends to itself and the window - 1 before it. 0: to
  // all before it, in every layer.
  int64_t window, first_window_layer;
  int64_t rotary_dim;     // of a head, so many of its first elements are rotated; 0: all
  bool qkv_bias, qk_norm; // of decoders whose configuration says (decoder_traits.h: whose family does)
  // Routed experts in the place of a layer's MLP; 0: none. Each row goes to `expert_slots` of them, each of
  // them an MLP of expert_size. Other layers (fsdp_model_has_experts) have an MLP of intermediate_size.
  int64_t experts, expert_slots, expert_size;
  int64_t first_expert_layer, expert_layer_step;       // step 0: every layer from the first on
  uint64_t dense_layers[FSDP_MODEL_LISTED_DENSE / 64]; // bits: these have an MLP too
  int64_t shared_expert_size;                          // of an MLP that every row goes to; 0: none
  bool gates_shared_expert;                            // which counts by a sigmoid of the row
  fsdp_route_score route_score;
  bool normalises_routes; // a row's weights are divided by their sum
  double route_scale;     // and multiplied by this; 0: by 1
  bool route_bias;        // experts are chosen by score + bias, and weighed without it
  // Experts are chosen within the route_groups_kept best of route_groups equal groups; 0 or 1: one group. A
  // group is as good as the sum of its route_group_best best.
  int64_t route_groups, route_groups_kept, route_group_best;
  bool router_f32;     // logits are fp32 whatever the model computes in
  bool replays_routes; // experts are given as an input; not part of what is printed
  // Losses of the router beside the cross-entropy: coefficients of how unevenly experts are used, and of the
  // size of logits (0: none), and over which rows the former is taken.
  double router_aux_coef, router_z_coef;
  fsdp_router_aux router_aux;
  // GPT-2's alone: probabilities, and whether PyTorch shall compute attention's scores in fp32, as is done
  // here always.
  double resid_pdrop, embd_pdrop, attn_pdrop;
  bool upcasts_attention;
} fsdp_model_config;

// How attention's FLOPs are counted: what causal attention computes, or, as often published, every pair of
// positions.
typedef enum fsdp_flops_convention { FSDP_FLOPS_CAUSAL, FSDP_FLOPS_ALL_PAIRS } fsdp_flops_convention;
