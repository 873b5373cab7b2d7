// Exposed communication: the part of a step in which a rank computes nothing because it waits for a
// collective. Of simulated and measured steps alike.
//
//   compute   ███ a ███        ███ b ███          b waits for the gather, which waits for the copy up
//   gather          ▒▒▒▒▒▒▒▒▒▒▒
//   h2d         ░░░░                              gap = [end of a, begin of b]: here all of it is exposed
//                                                 communication, as the copy ended before the gap began
//
// Definitions, for one rank:
// - work: an instruction on the compute stream, or a kernel on the host stream (an offloaded update);
// - a step lasts from the end of the last work of the step before it to the end of its own last work; where
//   no event of the step before is known, from the begin of its own first event. So steps end to end cover
//   all the time, and what delays a step's first work counts as that step's;
// - a gap: a maximal interval of the step in which no work runs. It ends with the begin of some work;
// - the cause of a gap is followed backwards from its end. The instructions that an instruction follows are
//   those that it waits for (the latest issue of each) and the one before it on its own stream. From the
//   work that ended the gap: of what it follows, take the one that ended last, if that was within the gap.
//   The time in which that one ran is exposed communication if it is a collective, an exposed copy if it is
//   an H2D or D2H, and other if it is anything else (a cast, a feed). The time between its end and the begin
//   of the one that follows it is other (launching). Then the same from its own begin, until the gap's begin
//   is reached; what nothing explains is other.
// A measured collective includes the wait for its peers, so a late peer counts as communication.
//
//   step_s = work_s + comm_s + h2d_s + d2h_s + other_s
#pragma once

#include "runtime/plan/price/issue_order.h"

typedef struct fsdp_exposure {
  double begin_s, end_s; // the step, as defined above
  double step_s;
  double work_s;               // in which some work runs
  double comm_s, h2d_s, d2h_s; // exposed
  double other_s;
  double comm_axes_s[1 << FSDP_MESH_AXES_MAX]; // of comm_s, by axis set of the program's communicators
  const double *comm_unit_s; // of comm_s, by unit + 1; [0]: of no unit. Valid until the meter's next use
  int unit_count;            // without "no unit"
} fsdp_exposure;

// When an instruction ran; not recorded if end_s < begin_s.
typedef struct fsdp_instr_time {
  double begin_s, end_s;
} fsdp_instr_time;

#define FSDP_INSTR_TIME_NONE ((fsdp_instr_time){0, -1})

// What measures exposure: tables made from the program once, so that measuring allocates nothing.
typedef struct fsdp_exposure_meter fsdp_exposure_meter;

// `program` has the sections of a step, and outlives the meter.
fsdp_exposure_meter *fsdp_exposure_meter_create(const fsdp_program *program);
void fsdp_exposure_meter_destroy(fsdp_exposure_meter *meter); // NULL is allowed

// The order of issue that the meter reads times by.
const fsdp_issue_order *fsdp_exposure_meter_order(const fsdp_exposure_meter *meter);

// A part of a gap in which a collective or a copy was waited for.
typedef struct fsdp_exposed_part {
  int position;
  double begin_s, end_s;
} fsdp_exposed_part;

// `visit` is called with every such part that the meter finds from now on, the later ones of a gap first.
void fsdp_exposure_meter_visit(fsdp_exposure_meter *meter,
                               void (*visit)(void *context, const fsdp_exposed_part *part), void *context);

// steps[1]: times by place (issue_order.h), of the step to measure; steps[0] and steps[2]: of the step
// before and after, or NULL where not known. Linear in the instructions of a step. The step must have
// recorded work.
void fsdp_exposure_measure(fsdp_exposure_meter *meter, const fsdp_instr_time *const steps[3],
                           fsdp_exposure *exposure);
