// Evaluations of settings from drafts: plans without packing and proof, in which nothing waits for memory.
#pragma once

#include "runtime/plan/plan.h"
#include "runtime/plan/price/device_profile.h"

// An estimate from drafts exceeds the step of the whole plan by less than this share: waits for memory can
// order what shares a link better than its streams do.
#define FSDP_EVALUATION_ERROR 0.03

typedef struct fsdp_evaluation {
  int64_t bytes[FSDP_SPACE_COUNT];      // arenas, of drafts peaks, with what lies beside the device's arena
  int64_t peak_bytes[FSDP_SPACE_COUNT]; // not of FEW and SEVERAL
  uint64_t hash;                        // of the program; of PEAKS, which has no addresses; else 0
  double step_s;                        // 0: peaks, without a profile, or a plan above what is allowed
  double comm_s, copies_s, update_s;    // exposed communication and copies; updates of the optimizer
  // Of drafts, lower bounds. work_s: of a step with any prefetch, wrap and accumulation: computation, the
  // collectives over `tensor` and `context` that it waits for, and updates on the host. layers_s: the same of
  // layers alone, with any strategy. axes_node_s, axes_network_s: the links' time of collectives over
  // `tensor` and `context`, inside nodes and between them. links_s: the busiest link's time with this
  // prefetch or none.
  double work_s, layers_s, axes_node_s, axes_network_s, links_s;
  double tokens_per_s, mfu, unhindered_s; // of PLAN; mfu 0: the device's peak is unknown
  int64_t sent_bytes;                     // of a step, scalars apart; of PEAKS and PLAN
} fsdp_evaluation;

// The machine that drafts are priced for, how many were made, and what those to come may use again.
typedef struct fsdp_estimator {
  const fsdp_device_profile *profile;
  int ranks_per_node;
  int64_t *drafts;
  fsdp_placements *recent; // NULL: nothing
} fsdp_estimator;

// FEW, from drafts of two numbers of layers, or of the whole model if its layers are not alike or too few.
// The peaks of each part of a step are extended by themselves, as an affine function of the number of layers.
// Fails as fsdp_plan_create and fsdp_pricing_create.
fsdp_status fsdp_estimate_few(const fsdp_estimator *estimator, const fsdp_plan_config *config,
                              fsdp_evaluation *out);

// SEVERAL, the same from drafts of more layers, in which streams that fall behind slowly have done so.
fsdp_status fsdp_estimate_several(const fsdp_estimator *estimator, const fsdp_plan_config *config,
                                  fsdp_evaluation *out);

// DRAFT, from one draft of all layers: what the whole plan takes but for waits for memory.
fsdp_status fsdp_estimate_whole(const fsdp_estimator *estimator, const fsdp_plan_config *config,
                                fsdp_evaluation *out);

// The estimate between two settings that differ in what the first `layers` of `of` layers save.
fsdp_evaluation fsdp_estimate_between(const fsdp_evaluation *none, const fsdp_evaluation *all, int layers,
                                      int of);
