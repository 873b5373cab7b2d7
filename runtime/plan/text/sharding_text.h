// Sharding rules as text.
//
//   # weights as in the state dict, module outputs as in the module tree ('' the whole model's), `input`
//   model.layers.*.self_attn.q_proj.weight: [fsdp, null]
//   model.layers.*: [[fsdp, data], null, null]
//   lm_head: [0, null, null]                            # 0: the first axis of --mesh
#pragma once

#include "runtime/plan/layout/sharding.h"
#include "runtime/plan/text/yaml_document.h"

// Adds the rules of a document, which `visit` reads. source->bad, with file and line, if it is anything but
// such a mapping; the errors of `visit`.
fsdp_status fsdp_sharding_read_rules(fsdp_sharding *sharding, const fsdp_yaml_source *source,
                                     fsdp_yaml_visit_function *visit, fsdp_error *error);

// Adds one rule "NAME=SPEC", in place of the rule of that name if there is one. FSDP_ERR_OPTION.
fsdp_status fsdp_sharding_read_assignment(fsdp_sharding *sharding, const char *text, const char *place,
                                          fsdp_error *error);

// The preset called "fsdp", "fsdp-tp" or "fsdpv2". False: there is none of that name.
bool fsdp_sharding_find_preset(const char *name, fsdp_sharding_preset *preset);

void fsdp_sharding_destroy(fsdp_sharding *sharding); // NULL is allowed
