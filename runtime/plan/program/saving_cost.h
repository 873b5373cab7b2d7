// What the fates of saved values cost a micro-batch: the work that its backward repeats, and the bytes that
// go to the host and come back.
//
// The unit of time is that in which the device reads or writes one byte of its memory. A backend's ratios
// (plan.h) say how many FLOPs of a gemm it does meanwhile, and how many such bytes it moves while one byte
// crosses the host link.
#pragma once

#include "runtime/plan/program/saved.h"
#include "runtime/plan/program/saving.h"

// Of the nodes that the backward repeats (pass_recompute.c).
typedef struct fsdp_repeated_work {
  double flops; // of their gemms, attention counted causally
  double bytes; // that they read and write
  double time;  // in bytes of device memory: of each node the more of its bytes and flops / flops_per_byte
} fsdp_repeated_work;

// The nodes of layer `layer`, or of all layers if it is -1. `fates` are by value of the graph, as
// fsdp_saving_resolve makes them. A linear layer counts as one gemm that reads its input once, also where its
// weights lie in several units.
fsdp_repeated_work fsdp_saving_repeated_work(const fsdp_graph *graph, const fsdp_fate *fates, int layer,
                                             fsdp_dtype param_dtype, double flops_per_byte);

// Bytes of the saved values with this fate, of one layer or (-1) of all. What is offloaded crosses the host
// link once in each direction. `saved` is the graph's.
int64_t fsdp_saving_bytes(const fsdp_graph *graph, const fsdp_saved *saved, const fsdp_fate *fates,
                          fsdp_fate fate, int layer, fsdp_dtype param_dtype);

// The time to remake what entry `index` of `saved` names instead of fetching it from the host: all that its
// op makes under that name and `fates` offloads, everything else as it is. Infinite for what enters a layer,
// which no rule recomputes. The same unit as fsdp_repeated_work.time.
double fsdp_saving_remake_time(const fsdp_graph *graph, const fsdp_saved *saved, int index,
                               const fsdp_fate *fates, fsdp_dtype param_dtype, double flops_per_byte);
