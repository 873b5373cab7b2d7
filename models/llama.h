// The Llama family: its configuration, its presets, and its forward pass as a graph.
#pragma once

#include "models/graph/graph.h"
#include "runtime/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fsdp_rope_scaling { FSDP_ROPE_DEFAULT, FSDP_ROPE_LINEAR, FSDP_ROPE_LLAMA3 } fsdp_rope_scaling;

typedef struct fsdp_llama_config {
  int64_t vocab_size, hidden_size, intermediate_size, num_layers;
  int64_t num_heads, num_kv_heads, head_dim;
  int64_t max_position_embeddings;
  double rms_norm_eps, rope_theta;
  fsdp_rope_scaling rope_scaling;
  double rope_factor, rope_low_freq_factor, rope_high_freq_factor; // linear uses the first, llama3 all
  int64_t rope_original_max_position;
  double initializer_range; // standard deviation of new weights
  bool tie_word_embeddings;
} fsdp_llama_config;

// Fills `config` with the preset of that name: llama2-7b, llama2-13b, llama2-70b, llama3-8b, llama3-70b,
// llama3-405b (published shapes), llama-1b, tiny. FSDP_ERR_OPTION with the list of names where there is none.
fsdp_status fsdp_llama_preset(const char *name, fsdp_llama_config *config, fsdp_error *error);

// Whether `name` is a preset's.
bool fsdp_llama_is_preset(const char *name);

// The name of preset `index`, NULL behind the last.
const char *fsdp_llama_preset_name(int index);

// Checks ranges and divisibility (heads by kv heads, even head_dim, positive sizes, products within int64).
// `where` names the file or preset in the message. FSDP_ERR_INPUT.
fsdp_status fsdp_llama_check(const fsdp_llama_config *config, const char *where, fsdp_error *error);

// The parameters' total number, a tied one counted once.
int64_t fsdp_llama_parameter_count(const fsdp_llama_config *config);

// The graph of one micro-batch of `batch` sequences of `seq` tokens: module tree with Hugging Face names,
// parameters, forward ops, and their backward. The caller owns it (fsdp_graph_destroy). `config` must have
// been checked.
fsdp_graph *fsdp_llama_graph(const fsdp_llama_config *config, int64_t batch, int64_t seq);

#ifdef __cplusplus
}
#endif
