// A timeline as a file in the Trace Event format (JSON), which Perfetto and chrome://tracing open: simulated
// and measured ones alike.
//
//   a process a rank; in it a row ("thread") for each of
//     step       each step, as exposure.h defines it, with what it exposes
//     compute, exposed, gather, ...   a complete event ("X") an instruction, on its stream's row; "exposed"
//                holds the parts of gaps of the work that a collective or copy explains
//   flows ("s", "f")   waits of one row for another, from the awaited event's end to the waiting one's begin
//   counters ("C")     planned live bytes by category, "device memory" and "host memory"
//
// The memory is the plan's, by the order of issue: a sample counts from the time when its instruction and all
// that were issued before it had begun.
#pragma once

#include "runtime/plan/plan.h"
#include "runtime/plan/price/timeline.h"

typedef struct fsdp_trace_source {
  const fsdp_plan *plan;
  const fsdp_timeline *timeline; // of the plan's program; any ranks, any steps
  const char *model_name;
  const char *kind; // "measured" or "simulated"
} fsdp_trace_source;

// Writes the file that --trace names. An existing one is replaced only by a whole one. FSDP_ERR_INPUT if it
// cannot be written.
fsdp_status fsdp_trace_write(const char *path, const fsdp_trace_source *source, fsdp_error *error);
