// The one judgement of a setting: the bytes that a rank needs, the seconds of a step, and what these consist
// of. The search, what is saved under a limit, remedies of what does not fit, variations beside a price and
// hints all ask it, and each answer is computed once.
//
//   PEAKS    bytes alone, of all layers          exact but for what packing takes beside the peaks
//   FEW      two drafts of few layers, extended  within 3%; 12% too little where links are busy
//   SEVERAL  the same of more layers             within 1.2%, as far as was seen
//   DRAFT    a draft of all layers               exact but for packing and the waits for memory that it makes
//   PLAN     planned and, if it fits, proved and priced: exact
#pragma once

#include "runtime/plan/search/estimate.h"

typedef enum fsdp_fidelity {
  FSDP_EVALUATE_PEAKS,
  FSDP_EVALUATE_FEW,
  FSDP_EVALUATE_SEVERAL,
  FSDP_EVALUATE_DRAFT,
  FSDP_EVALUATE_PLAN
} fsdp_fidelity;

// Of one machine. {0} but for the first four at first.
typedef struct fsdp_evaluator {
  const fsdp_device_profile *profile; // NULL: bytes alone
  int ranks_per_node;
  fsdp_memory_limits allowed; // plans that need more are not priced
  bool unhindered;            // of plans also what a step takes if every tensor had an address of its own
  struct fsdp_known_evaluation *known;
  int64_t size, used;
  fsdp_placements recent;
  int64_t drafts, plans; // that were made
} fsdp_evaluator;

// False, and nothing is written, if there is no such plan, or the profile has no price for it.
bool fsdp_evaluate(fsdp_evaluator *evaluator, const fsdp_plan_config *setting, fsdp_fidelity fidelity,
                   fsdp_evaluation *out);
// The bytes of PEAKS, of a DRAFT if that was made. False, and nothing is written, if there is no such plan.
bool fsdp_evaluate_bytes(fsdp_evaluator *evaluator, const fsdp_plan_config *setting,
                         int64_t bytes[FSDP_SPACE_COUNT]);
// The plan, or of one whose peaks alone are above what is allowed these: less than it needs, and found in a
// fraction of the time.
bool fsdp_evaluate_need(fsdp_evaluator *evaluator, const fsdp_plan_config *setting, fsdp_evaluation *out);
void fsdp_evaluator_release(fsdp_evaluator *evaluator);

// The arenas of a plan, with what lies beside the device's.
void fsdp_need_of(const fsdp_plan *plan, int64_t bytes[FSDP_SPACE_COUNT]);

// The most bytes above one of the limits, 0 if all hold. *space (may be NULL): where, of both together the
// device; unchanged for 0.
int64_t fsdp_excess_of(const fsdp_memory_limits *limits, const int64_t bytes[FSDP_SPACE_COUNT],
                       fsdp_space *space);
