// The simulator: runs a program's own streams and waits with the prices of its instructions, so that overlap
// and exposed communication are results, not assumptions.
//
//   stream   starts its next instruction when the one before has ended and all that it waits for too
//   sharing  an instruction runs at full speed while the resources that it uses are not asked for more than
//            they have; beyond that all that use one are slowed alike (price.h). Beside compute a link
//            moves less by the profile's factor, whether one collective uses it or several share it
//   steps    the next step is issued when the results of this one are published, as the executor does
//
// All ranks run the same list at the same time, so one rank's times are every rank's.
#pragma once

#include "runtime/plan/price/exposure.h"
#include "runtime/plan/price/price.h"
#include "runtime/plan/price/timeline.h"

#define FSDP_SIMULATED_STEPS 3 // the last of them is in a steady state

typedef struct fsdp_simulation fsdp_simulation;

// The tables of a program that is run again and again. `pricing` must outlive it.
fsdp_simulation *fsdp_simulation_create(const fsdp_pricing *pricing);
void fsdp_simulation_destroy(fsdp_simulation *simulation); // NULL is allowed

// Of the instruction at a position of a step's sections; zero elsewhere. Valid as long as the simulation.
const fsdp_price *fsdp_simulation_price_of(const fsdp_simulation *simulation, int position);

// What a simulated step takes.
typedef struct fsdp_step_price {
  double step_s;
  double flops;                                // of the rank's gemms, recomputation included
  double kind_s[FSDP_PRICE_KIND_COUNT];        // of work, by what it goes to; on the host, not beside compute
  double estimated_s[FSDP_PRICE_KIND_COUNT];   // of these, by rates that are estimated
  double busy_s[FSDP_STREAM_COUNT];            // of all its instructions, by stream
  double comm_s, h2d_s, d2h_s, other_s;        // exposed (exposure.h); with kind_s they add up to step_s
  double comm_axes_s[1 << FSDP_MESH_AXES_MAX]; // of comm_s, by axes of the program's mesh
  double *comm_unit_s;                         // of comm_s, by unit + 1; [0]: of no unit
  int unit_count;
} fsdp_step_price;

// Runs whole steps and measures the last one. Of a step with many micro-batches only some are run, and the
// others take the time of the last middle one. The caller releases *price.
void fsdp_simulation_run(fsdp_simulation *simulation, fsdp_step_price *price);
void fsdp_step_price_release(fsdp_step_price *price);

// Runs steps with all their micro-batches and appends the events of the last two, of rank 0, to a new
// timeline that begins with them: steps 1 and 2, of which the second is the one that is priced. The caller
// owns it.
fsdp_timeline *fsdp_simulation_timeline(fsdp_simulation *simulation);

// Tokens of a step, of all ranks.
double fsdp_plan_step_tokens(const fsdp_plan *plan);

// FLOPs that training one step needs on one rank, without recomputation, divided by what the profile's peak
// would do in `step_s`. 0: the peak is unknown.
double fsdp_pricing_mfu(const fsdp_pricing *pricing, double step_s, fsdp_flops_convention convention);
