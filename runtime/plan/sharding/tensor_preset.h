// The preset fsdp-tp: which weights and module outputs the axis tensor cuts, from the graph alone.
//
// A linear layer that reads whole rows (a norm's output) is cut in its outputs, one that reads cut columns
// (of attention, of an activation) in its inputs, after which the rows are whole again. A vocabulary is cut
// in the embedding and in the head. The other dimension of such a weight is cut over the axes that its spec
// names already.
#pragma once

#include "runtime/plan/sharding/specs.h"

// Adds the axis to specs of parameters whose first dimension has all their other axes, and to those of
// outputs, which have the input's axes. `sequence_parallel`: whole rows are cut, too, in the sequence.
// Nothing changes if it has one rank.
void fsdp_tensor_preset(fsdp_specs *specs, const fsdp_graph *graph, const fsdp_mesh *mesh,
                        bool sequence_parallel);
