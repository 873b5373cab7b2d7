// One fate for each saved value of each layer: kept, recomputed, or offloaded to the host until its backward.
//
//   --recompute block:8,rmsnorm,swiglu@17   ──parse──► rules ──resolve──► a fate per value of the graph
//
// A rule names values and takes those of the first so many layers. The first layers are where memory is
// needed: their values live longest, so while any layer's backward runs, no other choice of as many layers
// leaves fewer bytes. Where several rules name a value, recomputing it by name comes before offloading it,
// and that before recomputing whole layers.
#pragma once

#include "models/graph/graph.h"
#include "runtime/base/status.h"

typedef enum fsdp_fate {
  FSDP_FATE_NONE, // no backward reads it
  FSDP_FATE_KEEP,
  FSDP_FATE_RECOMPUTE,
  FSDP_FATE_OFFLOAD
} fsdp_fate;

#define FSDP_SAVING_RULES_MAX    24
#define FSDP_SAVING_NAME_BYTES   64
#define FSDP_SAVING_TEXT_BYTES   2048 // that of as many rules as there may be
#define FSDP_SAVING_OPTION_BYTES 192

typedef struct fsdp_saving_rule {
  // "block": all that a layer saves but what enters it. "block_inputs": what enters it. Else a name of
  // saved.h, alone or with a module: "linear:up_proj".
  char name[FSDP_SAVING_NAME_BYTES];
  int layers; // the first so many; 0: all
  fsdp_fate fate;
} fsdp_saving_rule;

typedef struct fsdp_saving {
  fsdp_saving_rule rules[FSDP_SAVING_RULES_MAX];
  int count;
  // How messages name the options that gave the rules: "--recompute (command line)"; "": by name alone.
  char recompute_option[FSDP_SAVING_OPTION_BYTES], offload_option[FSDP_SAVING_OPTION_BYTES];
} fsdp_saving;

// Every layer recomputed whole: `--recompute block`.
fsdp_saving fsdp_saving_of_blocks(void);

// Whether the rules are the same, in the same order.
bool fsdp_saving_equal(const fsdp_saving *a, const fsdp_saving *b);

// Whether a rule takes a part of the layers, so that they differ in what they save.
bool fsdp_saving_has_parts(const fsdp_saving *saving);
// Whether a rule offloads anything.
bool fsdp_saving_offloads(const fsdp_saving *saving);

// Appends the rules of `text`: items "NAME", "NAME:MODULE" or "block:K", each with "@K" for the first K
// layers, separated by commas, with or without spaces after them; "none" and "" are no rule.
// FSDP_ERR_OPTION, naming `option`, if an item is malformed. Names are checked against a model by
// fsdp_saving_resolve, which names `option` too.
fsdp_status fsdp_saving_parse(const char *text, const char *option, fsdp_fate fate, fsdp_saving *saving,
                              fsdp_error *error);

// The rules of one fate as text that parses to them again; "none" if there is none. Returns `out`.
const char *fsdp_saving_print(const fsdp_saving *saving, fsdp_fate fate, char out[FSDP_SAVING_TEXT_BYTES]);

// Sets fates[v] for every value of the graph (value_count entries). What is to come back `ahead` layers
// before its own is kept in the last `ahead` layers, where it would have no time to leave. FSDP_ERR_OPTION if
// a rule names nothing that the model saves, or more layers than it has, or if two rules contradict each
// other.
fsdp_status fsdp_saving_resolve(const fsdp_saving *saving, const fsdp_graph *graph, int ahead,
                                fsdp_fate *fates, fsdp_error *error);
