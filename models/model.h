// A model: its family, its shape, and what can be asked of it. Nothing outside models/ knows a family.
//
//   config.json, as JSON ──read──► fsdp_model_config ──graph──► fsdp_graph
//   a preset's name ────preset──►   │ │ └─ print ──► config.json, a checkpoint's manifest
//                                   │ └─ differs ──► "rope_theta 10000.0 → 500000.0"
//                                   └─ parameter count, FLOPs a token
//
// The families are listed in families.def; family.h is what one of them provides.
#pragma once

#include "models/graph/graph.h"
#include "runtime/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct json_t json_t; // jansson's
typedef struct fsdp_family fsdp_family;

typedef enum fsdp_rope_scaling { FSDP_ROPE_DEFAULT, FSDP_ROPE_LINEAR, FSDP_ROPE_LLAMA3 } fsdp_rope_scaling;

#define FSDP_MODEL_MAX_EXTRAS 8

// A plain value: copied freely, it owns nothing. What a family does not have is 0. Two configurations are
// compared by fsdp_model_differs; between processes one travels as what fsdp_model_print makes of it, for the
// family is an address.
typedef struct fsdp_model_config {
  const fsdp_family *family; // static
  int64_t vocab_size, hidden_size, intermediate_size, num_layers;
  int64_t num_heads, num_kv_heads, head_dim;
  int64_t max_position_embeddings;
  double norm_eps;
  double initializer_range; // standard deviation of new weights
  bool tie_word_embeddings;
  double rope_theta;
  fsdp_rope_scaling rope_scaling;
  double rope_factor, rope_low_freq_factor, rope_high_freq_factor; // linear uses the first, llama3 all
  int64_t rope_original_max_position;
  // What one family alone has, by indices of its own.
  union {
    int64_t integer;
    double number;
  } extra[FSDP_MODEL_MAX_EXTRAS];
} fsdp_model_config;

// ---- From JSON and back

// Reads a Hugging Face configuration: `model_type` and `architectures` choose the family, which reads and
// checks the rest. FSDP_ERR_INPUT, with `where` (what the object is called), key, value and remedy, if a
// field is missing or malformed, the family is not known, or something is asked for that is not built;
// `config` is then unspecified.
fsdp_status fsdp_model_read(const json_t *root, const char *where, fsdp_model_config *config,
                            fsdp_error *error);

// The object that fsdp_model_read reads back as `config`, with what Transformers requires beside it. A new
// reference.
json_t *fsdp_model_print(const fsdp_model_config *config);

typedef enum fsdp_model_scope {
  FSDP_MODEL_ALL,    // every key that is printed
  FSDP_MODEL_NUMBERS // those that change a number in a run that continues from trained weights
} fsdp_model_scope;

// How two configurations differ, key by key: "rope_theta 10000.0 → 500000.0, rope_scaling.factor 8.0 → 4.0"
// (from `a` to `b`) into `out`, cut off if it is too short. False if they do not differ.
bool fsdp_model_differs(const fsdp_model_config *a, const fsdp_model_config *b, fsdp_model_scope scope,
                        char *out, size_t out_bytes);

// ---- Presets

// Fills `config` with the preset of that name. FSDP_ERR_OPTION, with the list of names, if there is none.
fsdp_status fsdp_model_preset(const char *name, fsdp_model_config *config, fsdp_error *error);

// Whether `name` is a preset's.
bool fsdp_model_is_preset(const char *name);

// The name of preset `index` of all families', NULL behind the last.
const char *fsdp_model_preset_name(int index);

// ---- What it is

// The parameters' total number, a tied one counted once.
int64_t fsdp_model_parameter_count(const fsdp_model_config *config);

// How attention's FLOPs are counted: what causal attention computes, or, as many publish, every pair of
// positions.
typedef enum fsdp_flops_convention { FSDP_FLOPS_CAUSAL, FSDP_FLOPS_ALL_PAIRS } fsdp_flops_convention;

// FLOPs of training on one token of a sequence of `seq`, nothing recomputed.
double fsdp_model_flops_per_token(const fsdp_model_config *config, int64_t seq,
                                  fsdp_flops_convention convention);

// The graph of one micro-batch of `batch` sequences of `seq` tokens: module tree with Hugging Face's names,
// parameters, forward ops, and their backward. The caller owns it (fsdp_graph_destroy).
fsdp_graph *fsdp_model_graph(const fsdp_model_config *config, int64_t batch, int64_t seq);

#ifdef __cplusplus
}
#endif
