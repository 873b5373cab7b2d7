// What a family of models provides: one file that defines `const fsdp_family fsdp_family_NAME`, and one line
// in families.def. model.c does what all families have in common: it chooses the family, prints model_type
// and architectures, checks what holds for every decoder, and builds the backward.
//
// Helpers: fields.h reads fields of a configuration, rope.h its rotary embedding, parts.h builds the modules
// and ops that families share, decoder.h is all of a decoder of Llama's kind.
#pragma once

#include "models/fields.h"
#include "models/graph/graph.h"
#include "models/model_config.h"

typedef struct fsdp_preset {
  const char *name;
  fsdp_model_config config; // without its family
} fsdp_preset;

struct fsdp_family {
  // The class of the decoder blocks' modules: `--wrap block` makes each a unit, `--recompute block`
  // recomputes each as a whole.
  const char *block_class;
  // In the order of --help; ends with one without a name.
  const fsdp_preset *presets;
  // Keys that change no number of a run that continues from trained weights; ends with NULL. Every other
  // printed key does change some.
  const char *const *keys_without_numbers;
  // Suffixes of the names of tensors in weight files that are not parameters (buffers of old conversions);
  // ends with NULL. NULL: there are none.
  const char *const *buffers;
  // The prefix of all parameters' names but the head's, which weight files may omit (GPT-2's "transformer.").
  // NULL: no prefix.
  const char *base_prefix;
  // What the functions of decoder.h must know of the family. NULL: it does not use them.
  const struct fsdp_decoder *decoder;
  // Weight files may have layers behind the last (of multi-token prediction), which are left out.
  bool skips_extra_layers;
  // Positions are parameters: no sequence may be longer than max_position_embeddings.
  bool learned_positions;

  // Fills `config`, which is zero but for the family, from the configuration's object. Keys that change the
  // arithmetic and are not supported are refused rather than ignored. Keys that the arithmetic does not
  // depend on (other token ids, torch_dtype, ...) are not read.
  void (*read)(fsdp_fields *fields, const json_t *root, fsdp_model_config *config);
  // Adds every key that `read` depends on to `root`, after model_type and architectures.
  void (*print)(const fsdp_model_config *config, json_t *root);
  // By a closed formula, tied ones counted once. May be called before the configuration has been checked.
  int64_t (*parameter_count)(const fsdp_model_config *config);
  // As fsdp_model_flops_per_token.
  double (*flops_per_token)(const fsdp_model_config *config, int64_t seq, fsdp_flops_convention convention);
  // What a user should know about this configuration before training, as a sentence. False: nothing. NULL:
  // no configuration of the family has a note.
  bool (*note)(const fsdp_model_config *config, char *out, size_t out_bytes);
  // The rates of dropout that the configuration has. NULL: those of the family have none that are not 0.
  void (*dropout)(const fsdp_model_config *config, fsdp_dropout *rates);
  // Fills an empty graph: modules and parameters in state-dict order, then the forward, block by block, from
  // the tokens to the loss.
  void (*build)(const fsdp_model_config *config, fsdp_graph *graph);
};

#define FAMILY(name, model_type, architecture) extern const fsdp_family fsdp_family_##name;
#include "models/families.def"
#undef FAMILY
