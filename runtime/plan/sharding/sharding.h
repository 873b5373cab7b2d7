// Sharding by names: a user's rules for weights and module outputs become placements.
//
//   model.layers.*.mlp.up_proj.weight: [fsdp, null]    a weight, of every layer
//   model.layers.*: [[data, fsdp], null, null]         the output of every layer
//
// Names are those of the state dict for weights, of the module tree for outputs ('' the whole model's), and
// "input" for tokens and targets; `name[i]` is one of several outputs. A part `*` of a name is any integer;
// an integer wins over it (names.h).
//
// Rules say how tensors are stored, with any axis on any dimension (specs.h). Each rule is checked alone
// here; conflicts with ops are found by propagation (seeds.h). Pure: no file, no device.
#pragma once

#include "runtime/base/status.h"
#include "runtime/plan/sharding/specs.h"

// The axes of one dimension as written, the outermost first: names, or indices into the mesh as it was given.
// Longer texts are cut; what is left is longer than any name.
typedef struct fsdp_rule_dim {
  int count;
  char axes[FSDP_MESH_AXES_MAX][FSDP_AXIS_NAME_BYTES + 1];
} fsdp_rule_dim;

typedef struct fsdp_shard_rule {
  char name[FSDP_NAME_BYTES + 1]; // without its index; longer ones are cut and match nothing
  int output;                     // of "name[output]", or -1
  int dims;                       // entries, also above FSDP_MAX_DIMS
  fsdp_rule_dim dim[FSDP_MAX_DIMS];
  char place[FSDP_SPEC_PLACE_BYTES]; // for messages: "llama.yaml:3"
  bool is_preset;                    // counts as a preset's
} fsdp_shard_rule;

// What holds for names without a rule.
typedef enum fsdp_sharding_preset {
  FSDP_SHARDING_FILE,    // weights are replicated
  FSDP_SHARDING_FSDP,    // weights: the first dimension on fsdp and context; the batch on data (or data_axis)
                         // and fsdp, the sequence on context
  FSDP_SHARDING_FSDP_TP, // the same with weights and activations cut over tensor (tensor_preset.h)
  FSDP_SHARDING_FSDPV2   // weights: the largest dimension, the first of equals, on fsdp; the batch on
                         // (data_axis and) fsdp
} fsdp_sharding_preset;

typedef struct fsdp_sharding {
  fsdp_sharding_preset preset;
  char data_axis[FSDP_AXIS_NAME_BYTES + 1]; // of a preset; "": not given
  bool sequence_parallel;                   // of fsdp-tp: tensor cuts the sequence of whole rows, too
  fsdp_mesh given;                          // the mesh as its user wrote it; count 0: not given
  fsdp_shard_rule *rules;                   // in the order of the file; each name once
  int rule_count;
} fsdp_sharding;

// From rules. FSDP_ERR_INPUT for what is wrong with a rule, FSDP_ERR_OPTION for a mesh that does not go with
// them; unknown names are reported all at once. `graph` has the forward. The caller owns *specs.
fsdp_status fsdp_sharding_resolve(const fsdp_sharding *sharding, const fsdp_graph *graph,
                                  const fsdp_mesh *mesh, fsdp_specs **specs, fsdp_error *error);
