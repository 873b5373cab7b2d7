// A model: its family, its shape, and what can be asked of it. Nothing outside models/ knows a family.
//
//   config.json, as JSON ──read──► fsdp_model_config ──graph──► fsdp_graph
//   a preset's name ────preset──►   │ │ └─ print ──► config.json, a checkpoint's manifest
//                                   │ └─ differs ──► "rope_theta 10000.0 → 500000.0"
//                                   └─ parameter count, FLOPs per token
//
// The families are listed in families.def; family.h is what one of them provides.
#pragma once

#include "models/graph/graph.h"
#include "models/model_config.h"
#include "runtime/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct json_t json_t; // jansson's

// ---- From JSON and back

// Reads a Hugging Face configuration: `model_type` and `architectures` choose the family, which reads and
// checks the rest. FSDP_ERR_INPUT, with `where` (what the object is called), key, value and remedy, if a
// field is missing or malformed, the family is unknown, or a requested feature is not supported. `config` is
// then unspecified.
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

// Whether a tensor of that name, in a weight file of any family, is a buffer rather than a parameter.
bool fsdp_model_is_buffer(const char *name);

// ---- Presets

// Fills `config` with the preset of that name. FSDP_ERR_OPTION, with the list of names, if there is none.
fsdp_status fsdp_model_preset(const char *name, fsdp_model_config *config, fsdp_error *error);

// Whether `name` is a preset's.
bool fsdp_model_is_preset(const char *name);

// The name of preset `index`, counted over all families; NULL after the last.
const char *fsdp_model_preset_name(int index);

// ---- Families

// "llama", "gpt2", ...: the model_type of family `index`; NULL after the last.
const char *fsdp_model_type(int index);

// ---- What it is

// The rates of dropout of the model's configuration. False: its family has none.
bool fsdp_model_dropout(const fsdp_model_config *config, fsdp_dropout *rates);

// The total number of parameters, tied ones counted once.
int64_t fsdp_model_parameter_count(const fsdp_model_config *config);

// Whether a layer has routed experts in the place of its MLP, and how many have.
bool fsdp_model_has_experts(const fsdp_model_config *config, int64_t layer);
int64_t fsdp_model_expert_layers(const fsdp_model_config *config);

// FLOPs of training on one token of a sequence of `seq`, without recomputation.
double fsdp_model_flops_per_token(const fsdp_model_config *config, int64_t seq,
                                  fsdp_flops_convention convention);

// FSDP_ERR_OPTION if the model has no positions for a sequence of `seq` tokens.
fsdp_status fsdp_model_check_seq(const fsdp_model_config *config, int64_t seq, fsdp_error *error);

// What a user should know about the model before training, as a sentence. False: nothing.
bool fsdp_model_note(const fsdp_model_config *config, char *out, size_t out_bytes);

// ---- A narrow one

// A model of the same family with few layers and small sizes, with the features of the given one, and cut
// alike by a mesh: what ranks divide stays divided, and what they do not divide stays so.
//
//   llama2-7b on tensor=8: 8 divides 32 heads, 11008 channels, 32000 entries of the vocabulary
//   narrow on tensor=2:    2 divides  2 heads,    26 channels,    38 entries; for 32001 it has 37

// Ranks over which a dimension is cut: of the model, and in its place of the narrow one.
typedef struct fsdp_narrow_cut {
  int64_t from, to;
} fsdp_narrow_cut;

typedef struct fsdp_narrow_cuts {
  const fsdp_narrow_cut *items;
  int count;
} fsdp_narrow_cuts;

// The size from `least` on, or `size` itself where that is smaller, that cuts divide most nearly as they
// divide `size`: evenly or not, with an item for every rank or not. Returns how many of these facts differ.
int fsdp_narrow_size(int64_t size, int64_t least, const fsdp_narrow_cuts *cuts, int64_t *out);

typedef struct fsdp_narrowing {
  fsdp_narrow_cuts cuts;
  const int *layers; // of the model that are kept, ascending
  int layer_count;
  int64_t seq, narrow_seq; // tokens of a sequence, for windows and learned positions
} fsdp_narrowing;

// Fills *out; returns how many facts differ.
int fsdp_model_narrow(const fsdp_model_config *config, const fsdp_narrowing *narrowing,
                      fsdp_model_config *out);

// ---- Its graph

// The graph of one micro-batch of `batch` sequences of `seq` tokens: module tree with Hugging Face's names,
// parameters and forward ops. The caller owns it (fsdp_graph_destroy).
fsdp_graph *fsdp_model_forward(const fsdp_model_config *config, int64_t batch, int64_t seq);
// The same with the backward.
fsdp_graph *fsdp_model_graph(const fsdp_model_config *config, int64_t batch, int64_t seq);

#ifdef __cplusplus
}
#endif
