// Plans a step, prices it and searches for a faster one, with libfsdp_plan alone:
// search_plans [MODEL] [RANKS] [PROFILE]
#include "runtime/plan/fsdp_plan.h"

#include <stdio.h>

static int failed(const fsdp_planner *planner) {
  fprintf(stderr, "search_plans: %s\n", fsdp_planner_error(planner));
  return 1;
}

int main(int argc, char **argv) {
  const char *const settings[][2] = {{"model", argc > 1 ? argv[1] : "llama2-7b"},
                                     {"ranks", argc > 2 ? argv[2] : "8"},
                                     {"profile", argc > 3 ? argv[3] : "h100-sxm"},
                                     {"global-batch", "64"}};
  fsdp_planner *planner = fsdp_planner_create();
  int status = 0;
  for (size_t i = 0; i < sizeof settings / sizeof *settings && !status; i++)
    if (fsdp_planner_set(planner, settings[i][0], settings[i][1])) status = failed(planner);
  char *(*const questions[])(fsdp_planner *) = {fsdp_planner_plan, fsdp_planner_price, fsdp_planner_search};
  for (size_t i = 0; i < sizeof questions / sizeof *questions && !status; i++) {
    char *answer = questions[i](planner);
    if (answer)
      puts(answer);
    else
      status = failed(planner);
    fsdp_planner_free(answer);
  }
  fsdp_planner_destroy(planner);
  return status;
}
