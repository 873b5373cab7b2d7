// Measured memory: valley and peak of a step from its access trace.
//
// Definitions (time is the order of issue, 0 .. issue_count - 1):
// - a byte's lifetime starts at a pure write (its first access within an instruction is a write) and ends
//   at its last access before the next pure write;
// - a byte whose first access in the step is a read was carried over from the step before: it is live from
//   the step's start, and the last lifetime of such a byte lasts to the step's end;
// - a buffer is live over each connected stretch of its bytes' lifetimes, with all the bytes accessed in
//   that stretch; one that carries bytes over the step boundary is live throughout, with all its bytes;
// - valley: bytes of the buffers that carry; peak: the greatest sum of live buffers' bytes over time.
// Two buffers that have a byte in common while both need it are an error.
#pragma once

#include "runtime/base/access.h"

#include <stdbool.h>
#include <stdint.h>

#define FSDP_MEASURE_SPACES 2 // device, host

typedef struct fsdp_measure_event {
  int64_t issue; // place of the instruction in the step's order of issue
  int buffer;    // which buffer it belongs to, from 0
  int space;     // 0 device, 1 host
  fsdp_access access;
  int64_t begin, end; // byte range in the space's arena
} fsdp_measure_event;

typedef struct fsdp_measurement {
  int64_t valley_bytes[FSDP_MEASURE_SPACES], peak_bytes[FSDP_MEASURE_SPACES];
  int64_t peak_issue[FSDP_MEASURE_SPACES]; // first at which the peak is reached
} fsdp_measurement;

// `events` in the order of issue, and in the order of access within an instruction. False if two buffers
// collide; `message` (of message_bytes) then says which and where.
bool fsdp_measure(const fsdp_measure_event *events, int64_t event_count, int64_t issue_count,
                  fsdp_measurement *measurement, char *message, int message_bytes);
