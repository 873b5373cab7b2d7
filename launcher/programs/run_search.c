#include "launcher/programs/run_search.h"

#include "launcher/programs/search_batch.h"
#include "launcher/programs/search_command.h"
#include "launcher/programs/search_report.h"
#include "launcher/report/price.h"
#include "launcher/report/whole_file.h"
#include "runtime/base/clock.h"

#include <unistd.h>

#define FIRST_LINE_S 1.0
#define EACH_LINE_S  0.5

typedef struct watch {
  double begin_s, last_s;
  bool printed;
} watch;

static double now_s(void) {
  return 1e-9 * (double)fsdp_now_ns();
}

// On a terminal, a line of progress, over and over, once it takes longer.
static void tell(const fsdp_search_progress *progress, void *context) {
  watch *w = context;
  const double now = now_s();
  if (now - w->begin_s < FIRST_LINE_S || now - w->last_s < EACH_LINE_S) return;
  fprintf(stderr, "\rfsdp_plan: %d of %d kinds, %lld drafts", progress->kinds_done, progress->kinds,
          (long long)progress->drafts);
  w->last_s = now;
  w->printed = true;
}

static fsdp_status print(const fsdp_search_job *job, const fsdp_search_found *found, fsdp_options *options,
                         fsdp_error *error) {
  if (!options->json) return fsdp_search_print(job, found, options, stdout, error);
  json_t *root;
  fsdp_status status = fsdp_search_json(job, found, options, &root, error);
  if (status) return status;
  json_dumpf(root, stdout, JSON_INDENT(1));
  putchar('\n');
  json_decref(root);
  return FSDP_OK;
}

static fsdp_status save(const fsdp_search_result *result, const fsdp_search_job *job,
                        const fsdp_options *options, fsdp_error *error) {
  char note[256], step[FSDP_PRICE_MS_BYTES];
  if (!options->save_plan) return FSDP_OK;
  snprintf(note, sizeof note, "fsdp_plan --search for %d ranks, %d a node, of %s: %s a step",
           job->config.ranks, job->config.ranks_per_node, job->config.profile->name,
           fsdp_price_print_ms(result->plans[0].step_s, step));
  return fsdp_search_save(options, options->save_plan, note, error);
}

fsdp_status fsdp_search_and_print(fsdp_options *options, fsdp_error *error) {
  const fsdp_setup_ranks ranks = fsdp_setup_ranks_planned(options);
  fsdp_search_job job;
  fsdp_search_found found = {.note_count = 0};
  watch w = {.begin_s = now_s()};
  fsdp_status status = FSDP_OK;
  if (options->save_plan) status = fsdp_whole_file_try("save-plan", options->save_plan, error);
  if (status) return status;
  status = fsdp_search_job_create(options, FSDP_PROGRAM_PLAN, &ranks, NULL, &job, error);
  if (status == FSDP_OK) {
    if (isatty(STDERR_FILENO)) job.config.progress = tell;
    job.config.context = &w;
    status = fsdp_search_find(options, &job, &found, error);
  }
  if (w.printed) fputc('\n', stderr);
  if (status == FSDP_OK && !found.result.count) status = fsdp_search_fail_unfit(&job, &found.result, error);
  if (status == FSDP_OK) status = print(&job, &found, options, error);
  if (status == FSDP_OK) status = save(&found.result, &job, options, error);
  fsdp_search_result_release(&found.result);
  fsdp_search_job_destroy(&job);
  return status;
}
