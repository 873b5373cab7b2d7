// Lifetimes for packing that are longer than those of the list, so that reuse of an address seldom makes a
// stream wait for another.
//
//   compute   | grad 3 | grad 2 | grad 1 | grad 0 |
//   reduce               | reduce 3 | reduce 2 | reduce 1 |     behind the list, in which reduce 3 stands
//                                                               between grad 3 and grad 2
//
// In the list a tensor is free after its last instruction. But other streams lag behind compute, by a time
// that is unknown here, and a tensor that is placed where they still read or write waits for them. So
//
//   small items     live as long as their section: that costs little, and a few bytes under a large tensor
//                   make it wait as well
//   the next job    an item that a stream other than compute is last to access lives until that stream begins
//                   its next job, when it has finished this one, as long as the greatest sum of live bytes
//                   allows
//   further jobs    and for some jobs more, for streams that fall behind more and more, where memory is not
//                   needed otherwise
//
// A job is what a stream does between two instructions of compute; what is much smaller than the job before
// it is a part of that.
#pragma once

#include "runtime/plan/memory/pack_item.h"
#include "runtime/plan/program/program.h"

typedef struct fsdp_extension {
  int64_t base; // bytes below all items
  // How far the greatest sum of base and items may be filled by items that live until the next job, and for
  // further jobs: shares of that sum. Without gaps, packing gets hard.
  double next_share, further_share;
  int jobs; // by which a lifetime is extended at most; with many, packing gets hard
} fsdp_extension;

// Makes items of one space begin earlier and end later; `items` have the lifetimes of the list.
void fsdp_extend_lifetimes(const fsdp_program *program, const fsdp_extension *extension,
                           fsdp_pack_item *items, int count);
