#include "runtime/plan/search/remedies.h"

#include "runtime/base/check.h"
#include "runtime/plan/search/neighbours.h"

#include <stdio.h>
#include <string.h>

static int64_t excess(const fsdp_evaluator *evaluator, const fsdp_evaluation *e) {
  return fsdp_excess_of(&evaluator->allowed, e->bytes, NULL);
}

// Applies a remedy, halvings repeated until it fits; `text` is what to type. False if it does not apply.
static bool apply(const fsdp_neighbour *remedy, fsdp_evaluator *evaluator, fsdp_plan_config *config,
                  fsdp_evaluation *result, char text[FSDP_NEIGHBOUR_BYTES]) {
  bool applied = false;
  do {
    fsdp_plan_config changed = *config;
    char said[FSDP_NEIGHBOUR_BYTES];
    fsdp_evaluation least;
    if (!remedy->apply(remedy, evaluator, &changed, said) || !fsdp_evaluate_need(evaluator, &changed, &least))
      return applied;
    *config = changed;
    *result = least;
    memcpy(text, said, sizeof said);
    applied = true;
  } while (remedy->repeats && excess(evaluator, result) > 0);
  return applied;
}

// One change that is enough: the first in order, or of those that change no result the fastest.
static bool find_single(const fsdp_plan_config *given, fsdp_evaluator *evaluator,
                        char text[FSDP_REMEDY_BYTES], fsdp_evaluation *result) {
  int count;
  const fsdp_neighbour *list = fsdp_neighbours(&count);
  bool found = false;
  for (int n = 0; n < count && !(found && list[n].changes_results); n++) {
    fsdp_plan_config config = *given;
    char said[FSDP_NEIGHBOUR_BYTES];
    fsdp_evaluation after;
    if (!list[n].is_remedy || !apply(&list[n], evaluator, &config, &after, said) ||
        excess(evaluator, &after) > 0)
      continue;
    if (found && after.step_s >= result->step_s) continue;
    found = true;
    *result = after;
    memcpy(text, said, sizeof said);
    if (after.step_s == 0) return true;
  }
  return found;
}

// Several changes together, each if it helps, in their order. False if nothing found is enough; `text` and
// `result` are then the least that was found.
static bool find_several(const fsdp_plan_config *given, fsdp_evaluator *evaluator,
                         char text[FSDP_REMEDY_BYTES], fsdp_evaluation *result) {
  int count;
  const fsdp_neighbour *list = fsdp_neighbours(&count);
  fsdp_plan_config config = *given;
  size_t used = 0;
  text[0] = 0;
  FSDP_CHECK(fsdp_evaluate_need(evaluator, &config, result), "a plan that was made");
  for (int n = 0; n < count && used + FSDP_NEIGHBOUR_BYTES < FSDP_REMEDY_BYTES; n++) {
    fsdp_plan_config changed = config;
    char said[FSDP_NEIGHBOUR_BYTES];
    fsdp_evaluation after;
    if (!list[n].is_remedy || !apply(&list[n], evaluator, &changed, &after, said) ||
        excess(evaluator, &after) >= excess(evaluator, result))
      continue;
    config = changed;
    *result = after;
    snprintf(text + used, FSDP_REMEDY_BYTES - used, "%s%s", used ? " " : "", said);
    used = strlen(text);
    if (excess(evaluator, result) == 0) return true;
  }
  FSDP_CHECK(fsdp_evaluate(evaluator, &config, FSDP_EVALUATE_PLAN, result), "a plan that was made");
  return false;
}

fsdp_remedy fsdp_remedy_of(const fsdp_plan_config *config, fsdp_evaluator *evaluator) {
  fsdp_remedy found;
  fsdp_evaluation after;
  found.is_enough = find_single(config, evaluator, found.change, &after) ||
                    find_several(config, evaluator, found.change, &after);
  memcpy(found.bytes, after.bytes, sizeof found.bytes);
  return found;
}
