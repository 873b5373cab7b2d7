// A network of operators as users write it: fsdp_plan --graph FILE.
//
//   inputs: {x: [16, 32]}
//   parameters: {w1: [32, 64], b1: [64]}
//   operators:                    # name: {kind: [inputs], attributes}, makers before readers
//     fc1: {matmul: [x, w1]}
//     bias: {add: [fc1, b1]}
//     mean: {reduce_mean: [bias], axis: 1, keep: true}
//
// network.h lists the kinds. Attributes: transposed (matmul), permutation (transpose), axis (reduce_mean,
// slice), keep (reduce_mean), begin and size (slice).
#pragma once

#include "runtime/plan/propagate/network.h"

// Reads the file; items have `item_bytes` bytes. The caller owns *network. FSDP_ERR_INPUT, with file and
// line, for what is wrong.
fsdp_status fsdp_network_read(const char *path, int item_bytes, fsdp_network **network, fsdp_error *error);
