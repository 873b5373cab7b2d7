// The search: the fastest plans for a model on a machine that a profile describes.
//
//   kinds      meshes x strategies x offload of the states x rows that tensor cuts
//              ──bounds──► some cannot fit, some cannot be fast; the lowest bound is tried first
//   settings   of a kind: micro-batch x accumulation x wrap x prefetch x what is saved
//   estimate   of a setting: drafts of two small models of a few layers, extended to all
//   finalists  the best setting of each kind, estimated from a draft of all layers, then planned, proved and
//              priced whole; of the best ones finer choices of what is saved, other prefetch and wraps too
//
// Branch and bound over a fixed grid, best bound first.
// Exact: bounds, which hold for the whole plan of every setting (test_search_bounds.c), so that nothing is
// lost by one, where a kind's micro-batches were drafted and not the largest alone; bytes and seconds of the
// plans returned.
// Not exact: of the largest micro-batch others are taken to be faster by FSDP_EVALUATION_ERROR at most;
// bounds are held against estimates, which may be off by as much, and estimates rank kinds before any is
// priced, so the best of the grid may be missed by a little; a kind is not planned where plans like its own
// took so much longer than estimated that it would not be listed; what one variant of a setting saves is not
// asked of all others; what is outside of the grid is missed altogether (fsdp_search_untried).
// Pure and deterministic: no files, no MPI, no clock; ties go to what is enumerated first.
#pragma once

#include "runtime/plan/search/search_config.h"

// FSDP_ERR_OPTION if what is fixed leaves nothing to plan; FSDP_ERR_INPUT if the profile lacks what pricing
// needs. If nothing fits the status is FSDP_OK and the count 0. The
// caller releases *result.
fsdp_status fsdp_search_run(const fsdp_search_config *config, fsdp_search_result *result, fsdp_error *error);
void fsdp_search_result_release(fsdp_search_result *result);

// Plans and prices one setting whole, as finalists are. FSDP_ERR_CAPACITY if it does not fit, FSDP_ERR_OPTION
// if it makes no plan.
fsdp_status fsdp_search_price(const fsdp_search_config *config, const fsdp_plan_config *setting,
                              fsdp_search_plan *plan);

// FSDP_ERR_OPTION: the ranks cannot share the step's sequences; with what could be given otherwise.
fsdp_status fsdp_search_fail_undivided(const fsdp_search_config *config, fsdp_error *error);

// What no search tries, in a line.
const char *fsdp_search_untried(void);

// "compute", "communication", ...
const char *fsdp_search_bound_name(fsdp_search_bound bound);
