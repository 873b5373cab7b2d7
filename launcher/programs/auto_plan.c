#include "launcher/programs/auto_plan.h"

#include "launcher/programs/probe_machine.h"
#include "launcher/report/price.h"
#include "launcher/setup/rank_memory.h"
#include "launcher/setup/search_setup.h"
#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "runtime/plan/text/option_table.h"

#include <stdlib.h>
#include <string.h>

// Of a measurement at the start of training.
#define MEASURED_S 20

#define PLACE "--auto"

// What was chosen: "name=value\n" for every option taken from the plan. The caller frees it.
static char *print_chosen(const fsdp_options *options) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  FSDP_NEED_MEMORY(out, "the chosen options");
  for (const fsdp_option_row *row = fsdp_option_table; row->name; row++) {
    if (strcmp(fsdp_options_place(options, row->name), PLACE) != 0) continue;
    char *value = fsdp_options_value(options, row);
    fprintf(out, "%s=%s\n", row->name, value);
    free(value);
  }
  fclose(out);
  return text;
}

static void print_choice(const fsdp_search_job *job, const fsdp_search_plan *plan, const char *chosen) {
  printf("auto: chosen for %lld sequence%s a step on %s:", (long long)job->config.global_batch,
         fsdp_plural(job->config.global_batch), job->config.profile->name);
  for (const char *at = chosen; *at; at += strcspn(at, "\n") + 1) {
    const int name = (int)strcspn(at, "="), line = (int)strcspn(at, "\n");
    printf(" --%.*s %.*s", name, at, line - name - 1, at + name + 1);
  }
  putchar('\n');
  if (!job->measured) return; // with a profile the start says so
  const fsdp_price_report priced = {.step = {.step_s = plan->step_s, .comm_s = plan->comm_s},
                                    .mfu_causal = plan->mfu};
  char text[160];
  printf("predicted: %s\n", fsdp_price_line(&priced, text, sizeof text));
}

// On rank 0. *chosen: what other ranks are to take.
static fsdp_status decide(const fsdp_setup_ranks *ranks, fsdp_device_profile *measured, fsdp_options *options,
                          char **chosen, fsdp_error *error) {
  fsdp_search_job job;
  fsdp_search_result result = {0};
  fsdp_status status = fsdp_search_job_create(options, FSDP_PROGRAM_TRAIN, ranks, measured, &job, error);
  if (status == FSDP_OK) status = fsdp_search_run(&job.config, &result, error);
  // Training is refused only for what does not fit at all.
  if (status == FSDP_OK && !result.count && !fsdp_options_given(options, "memory-margin")) {
    fsdp_search_result_release(&result);
    job.config.margin = 0;
    status = fsdp_search_run(&job.config, &result, error);
    if (status == FSDP_OK && result.count)
      printf(
          "auto: no plan leaves %s of the device's memory free (--memory-margin): chosen without a margin\n",
          fsdp_option_find("memory-margin")->fallback);
  }
  if (status == FSDP_OK && !result.count) status = fsdp_search_fail_unfit(&job, &result, error);
  if (status == FSDP_OK)
    status = fsdp_search_take(&job, &result.plans[0].config, FSDP_PROGRAM_TRAIN, PLACE, options, error);
  if (status == FSDP_OK) {
    *chosen = print_chosen(options);
    print_choice(&job, &result.plans[0], *chosen);
  }
  fsdp_search_result_release(&result);
  fsdp_search_job_destroy(&job);
  return status;
}

static fsdp_status take(char *chosen, fsdp_options *options, fsdp_error *error) {
  fsdp_status status = FSDP_OK;
  for (char *rest = chosen, *line; status == FSDP_OK && (line = strsep(&rest, "\n")) && *line;) {
    char *value = strchr(line, '=');
    FSDP_CHECK(value, "a choice without a value");
    *value++ = 0;
    status = fsdp_options_set(options, FSDP_PROGRAM_TRAIN, line, value, PLACE, error);
  }
  return status;
}

fsdp_status fsdp_auto_plan(fsdp_world *world, const fsdp_gpu *gpu, fsdp_options *options, fsdp_error *error) {
  fsdp_device_profile *measured = NULL;
  fsdp_setup_ranks ranks;
  fsdp_status status = FSDP_OK;
  if (!options->profile) {
    const fsdp_probe_machine_config probe = {
        .world = world, .gpu = gpu, .bind = options->bind, .seconds = MEASURED_S};
    measured = fsdp_device_profile_create();
    if (world->rank == 0) printf("auto: measuring this machine for about %d s\n", MEASURED_S);
    status = fsdp_probe_machine(&probe, measured, error);
  }
  if (status == FSDP_OK) status = fsdp_rank_memory_find(world, gpu, &ranks, error);
  if (status) {
    fsdp_device_profile_destroy(measured);
    return status;
  }
  char *chosen = NULL;
  if (world->rank == 0)
    decide(&ranks, measured, options, &chosen, error); // it owns what was measured
  else
    fsdp_device_profile_destroy(measured);
  status = fsdp_world_share_error(world, error);
  if (status == FSDP_OK) {
    char *text = fsdp_world_broadcast_text(world, chosen ? chosen : "");
    status = world->rank == 0 ? FSDP_OK : take(text, options, error);
    free(text);
  }
  free(chosen);
  return status;
}
