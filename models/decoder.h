// The decoder that Llama and its relatives share: RMSNorm, attention with RoPE over grouped heads, SwiGLU.
// What differs between them stands in fsdp_decoder (family.decoder); a family's file holds this, its presets
// and the keys that it alone has.
#pragma once

#include "models/decoder_traits.h"
#include "models/family.h"

// Keys of what fsdp_decoder_print adds that change no number (family.h).
extern const char *const fsdp_decoder_keys_without_numbers[];

// Functions of a family (family.h) that read `decoder` from it. Sizes without a sensible default in
// Transformers are required. Keys that the family alone has are read and printed behind the others.
void fsdp_decoder_read(fsdp_fields *fields, const json_t *root, fsdp_model_config *config);
void fsdp_decoder_print(const fsdp_model_config *config, json_t *root);
int64_t fsdp_decoder_parameter_count(const fsdp_model_config *config);
double fsdp_decoder_flops_per_token(const fsdp_model_config *config, int64_t seq,
                                    fsdp_flops_convention convention);
void fsdp_decoder_build(const fsdp_model_config *config, fsdp_graph *graph);

// A preset's sizes: hidden, intermediate, layers, heads, key/value heads, elements of a head.
#define FSDP_DECODER_SHAPE(C, I, L, H, K, D)                                                                 \
  .hidden_size = (C), .intermediate_size = (I), .num_layers = (L), .num_heads = (H), .num_kv_heads = (K),    \
  .head_dim = (D)

// What every fsdp_family of this kind begins with.
#define FSDP_DECODER_FAMILY(presets_, decoder_)                                                              \
  .presets = (presets_), .decoder = &(decoder_), .keys_without_numbers = fsdp_decoder_keys_without_numbers,  \
  .read = fsdp_decoder_read, .print = fsdp_decoder_print, .parameter_count = fsdp_decoder_parameter_count,   \
  .flops_per_token = fsdp_decoder_flops_per_token, .build = fsdp_decoder_build
