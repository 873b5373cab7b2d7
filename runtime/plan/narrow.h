// A plan's narrow twin: a model of the same family with few and small layers, on a mesh with short axes, with
// the plan's own placements and options. It is small enough to be run by threads of one process, and what is
// wrong with how tensors are cut, moved or summed in the plan is wrong in it, too.
//
//   plan                                     twin
//   mesh fsdp=512,tensor=8                   fsdp=2,tensor=2; 3 or 4 where divisibility needs it
//   126 layers                               2 of each kind of neighbours that lie and are saved alike
//   heads 128, vocabulary 128256, ...        models/model.h
//   --sharding, --shard, --op-strategies     weights as they came to lie; outputs as they are given
//   --wrap                                   the same modules are units
//   8192 tokens, 64 micro-batches            a few tokens, cut alike; 3 micro-batches
//   bf16, a GPU                              fp32, a CPU
#pragma once

#include "runtime/plan/plan.h"

typedef struct fsdp_narrow {
  fsdp_plan_config config;
  fsdp_sharding sharding; // of config
  char *wrapped;          // of config.wrap
  int *layers;            // of the plan: which of them each of its own stands for
} fsdp_narrow;

// Never NULL.
fsdp_narrow *fsdp_narrow_create(const fsdp_plan *plan);
void fsdp_narrow_destroy(fsdp_narrow *narrow); // NULL is allowed

// The same model and global batch as a plan's on one rank, with nothing sharded, recomputed or offloaded. It
// is one micro-batch, but for a router's losses that are means over the rows of each: then it has the plan's,
// or one for each rank's rows where the losses are theirs (--aux-loss rank). Those of a part of each sequence
// are no micro-batch's, so that such a plan has nothing to be compared with (self_test.h).
fsdp_plan_config fsdp_narrow_alone(const fsdp_plan *plan);
