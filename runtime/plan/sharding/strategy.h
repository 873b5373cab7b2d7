// What an op does on a mesh, its strategy: the axes that shard each of its letters.
#pragma once

#include "models/graph/placement.h"

// By letter, 'a' to 'z'.
typedef struct fsdp_op_strategy {
  fsdp_axis_set of[26];
} fsdp_op_strategy;

static inline fsdp_axis_set fsdp_strategy_axes(const fsdp_op_strategy *strategy, char letter) {
  return strategy->of[letter - 'a'];
}
