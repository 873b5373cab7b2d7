// A network of operators as users write it, as a graph: fsdp_plan --graph FILE.
//
//   inputs: {x: [16, 32]}
//   parameters: {w1: [32, 64], b1: [64]}
//   operators:                    # name: {kind: [inputs], attributes}, makers before readers
//     fc1: {matmul: [x, w1]}
//     bias: {add: [fc1, b1]}
//     mean: {reduce_mean: [bias], axis: 1, keep: true}
//
// listed.h lists the kinds. Attributes: transposed (matmul), permutation (transpose), axis (reduce_mean,
// slice), keep (reduce_mean), begin and size (slice).
#pragma once

#include "runtime/plan/sharding/listed.h"

// Reads the file. The caller owns *graph. FSDP_ERR_INPUT, with file and line, for what is wrong.
fsdp_status fsdp_listed_read(const char *path, fsdp_graph **graph, fsdp_error *error);
