// Blocks of experts: a layer's experts as several sets of weights that are gathered one after the other.
//
//   parameter    gate_up_proj (E, 2I, C)   block 0 (E/3, 2I, C) | block 1 | block 2     and so down_proj
//   forward      up 0, swiglu 0, down 0,   up 1, swiglu 1, down 1,   up 2, ...            then combine
//   backward     block 2, block 1, block 0                                               then combine
//
// Routed rows lie in the order of their experts, so a block has a range of them, which offsets on the device
// say. All blocks work on the same values, each on its own rows: sums over a row's slots, and so all numbers,
// are those without blocks. A rank's experts are cut, whatever cuts them over ranks; their number need not be
// divisible.
#pragma once

#include "models/graph/graph.h"

// Cuts the experts of each layer in `count` blocks, or leaves the graph as it is if that is 1. Behind
// placements and the backward. No rank may have fewer than `count` places for experts.
void fsdp_expert_blocks_cut(fsdp_graph *graph, int count);

// Experts that a rank has places for; 0 if the model has none.
int64_t fsdp_expert_blocks_held(const fsdp_graph *graph);
