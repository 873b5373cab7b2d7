// When the instructions of the newest steps ran: for where a step's time goes, for exposed communication, and
// for timelines.
//
//   instructions of a thread (a CPU's, a GPU's host stream)   the host's clock before and after
//   instructions in a device's queue                          timestamps in the queue
//
// A timestamp takes a part of the time of a launch. So in a device's queues only what exposed communication
// needs is timed: what is not on the compute stream, and of the compute stream the ends of each stretch
// between two waits for other streams; if the program has no collective, the ends of phases alone. In traced
// steps every instruction is.
//
// Timestamps are put on the host's clock by what must hold: an instruction of the host stream begins after
// the queued instruction that it waits for has ended. The least such distance counts as none, so a device's
// times may be late by as long as a thread takes to wake up.
//
// Everything is allocated at creation, in host memory that is in no plan: for each instruction that a step
// issues 64 bytes, on a GPU 112, and the meter's tables. A model of a few layers issues about a hundred in a
// micro-batch, so each of these adds some 7 kB; only steps of very many micro-batches show it.
#pragma once

#include "runtime/device/device.h"
#include "runtime/plan/price/exposure.h"
#include "runtime/plan/price/timeline.h"

// The steps that a timeline is made of, counted as the executor counts; last 0: none.
typedef struct fsdp_traced_steps {
  int64_t first, last;
} fsdp_traced_steps;

typedef struct fsdp_step_times_config {
  const fsdp_program *program; // outlives the times, as does the device
  fsdp_device *device;
  fsdp_traced_steps traced;
  int rank; // that the timeline's events name
} fsdp_step_times_config;

typedef struct fsdp_step_times fsdp_step_times;

// Of a step: the forward of each micro-batch (up to the first backward op), its backward, the update section.
typedef enum fsdp_phase {
  FSDP_PHASE_FORWARD,
  FSDP_PHASE_BACKWARD,
  FSDP_PHASE_UPDATE,
  FSDP_PHASE_COUNT
} fsdp_phase;

typedef struct fsdp_step_sums {
  double busy_ms[FSDP_STREAM_COUNT]; // threads running instructions, waits inside a collective included
  // Wall time from the phase's first compute instruction to its last, summed over micro-batches; the update's
  // over all streams. An update that runs behind the backward belongs to the backward.
  double phase_ms[FSDP_PHASE_COUNT];
  double op_ms[FSDP_OP_KIND_COUNT]; // of busy_ms, by op, over all streams
} fsdp_step_sums;

// Reserves the device's timestamps.
fsdp_step_times *fsdp_step_times_create(const fsdp_step_times_config *config);
void fsdp_step_times_destroy(fsdp_step_times *times); // NULL is allowed

// Records the instruction at `place` of `step` (issue_order.h), on its stream's thread, in the place of that
// of three steps before.
void fsdp_step_times_record(fsdp_step_times *times, int64_t step, int64_t place, int64_t begin_ns,
                            int64_t end_ns);

// Takes the timestamp of the begin, or the end, of an instruction in a device's queue, if it is timed.
void fsdp_step_times_mark(fsdp_step_times *times, int64_t step, int64_t place,
                          const fsdp_stream_context *context, bool ends);

// Where the time of `step`, the newest or the one before, went; its instructions must be complete.
void fsdp_step_times_sum(const fsdp_step_times *times, int64_t step, fsdp_step_sums *sums);

// What `step`, the newest or the one before, exposed; its instructions must be complete. The step after it is
// not looked at. All zero in a device's queues if nothing was timed. A traced step is appended to the
// timeline, the first time.
void fsdp_step_times_measure(fsdp_step_times *times, int64_t step, fsdp_exposure *exposure);

// The traced steps that were measured; NULL if none is to be traced. Its times begin at *origin_ns of the
// host's monotonic clock (fsdp_now_ns). To be called when the last of them was measured.
const fsdp_timeline *fsdp_step_times_timeline(fsdp_step_times *times, int64_t *origin_ns);
