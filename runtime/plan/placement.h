// What comes before a plan's program: the graph of one rank, where everything lies, and what is gathered
// together.
//
//   config ─► graph ─► specs ─► partition ─► backward ─► units
//
// It does not depend on what layers save, how far gathers run ahead, where gradients are summed, or where the
// state lies, so settings of a search that differ in these alone share one. Once made it does not change.
#pragma once

#include "models/model.h"
#include "runtime/plan/mesh/rows.h"
#include "runtime/plan/mesh/units.h"
#include "runtime/plan/program/schedule.h"
#include "runtime/plan/sharding/factored.h"
#include "runtime/plan/sharding/seeds.h"
#include "runtime/plan/sharding/sharding.h"

typedef struct fsdp_placement {
  fsdp_plan_config config; // of the first plan that it was made for
  int holders;
  fsdp_graph *graph;
  fsdp_specs *specs;
  fsdp_propagation *propagation; // of op_strategies, or of weights that rules leave open; else NULL
  fsdp_factored_mesh axes; // the configuration's mesh, of which an axis may be factored: that of the program
  fsdp_rows rows;          // which positions a rank's rows have
  fsdp_units *units;
} fsdp_placement;

// Those of three settings that take turns: an estimate extends drafts of two numbers of layers.
#define FSDP_PLACEMENTS_MAX 6

// Placements that were taken last, the latest first. {0}: none.
typedef struct fsdp_placements {
  fsdp_placement *of[FSDP_PLACEMENTS_MAX];
} fsdp_placements;

// A recent placement of such a configuration, or a new one; it is then the latest. `recent` may be NULL. What
// the configuration points to must not change before *recent is released. The caller releases *placement.
// Fails as fsdp_plan_create.
fsdp_status fsdp_placement_take(const fsdp_plan_config *config, fsdp_placements *recent,
                                fsdp_placement **placement, fsdp_error *error);
// The graph and the specs alone.
fsdp_status fsdp_placement_begin(const fsdp_plan_config *config, fsdp_placement **placement,
                                 fsdp_error *error);
// Ends a holder's use; the last one's frees it. NULL is allowed.
void fsdp_placement_release(fsdp_placement *placement);
void fsdp_placements_release(fsdp_placements *recent);

// Positions and rows are ints in kernels and lists; more rows than this would not fit any device. `seq` may
// have padding.
fsdp_status fsdp_placement_check_rows(const fsdp_plan_config *config, int64_t seq, fsdp_error *error);
