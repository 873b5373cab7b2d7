#include "launcher/programs/plan_commands.h"

#include "launcher/programs/search_batch.h"
#include "launcher/programs/search_command.h"
#include "launcher/report/output.h"
#include "launcher/report/price.h"
#include "launcher/report/report.h"
#include "launcher/report/whole_file.h"
#include "launcher/setup/setup_notes.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLACE        "--search"
#define REASON_BYTES (FSDP_MESH_TEXT_BYTES + 256)
#define FIRST_LINE_S 1.0
#define EACH_LINE_S  0.5

// ---- Why others lost

// Kinds share a line of the report by what they have in common: strategy and place of the states, cuts of
// layers, or how experts are divided.
typedef enum loss_class { LOSS_BY_STRATEGY, LOSS_BY_CUTS, LOSS_BY_EXPERTS, LOSS_CLASS_COUNT } loss_class;

// A line, and the best of its kinds.
typedef struct loss {
  char name[96];
  loss_class by;
  const fsdp_search_kind *best;
} loss;

#define LOSSES_MAX 96

static void name_class(const fsdp_search_kind *kind, loss_class by, char out[96]) {
  const int tensor = fsdp_mesh_size(&kind->mesh, FSDP_AXIS_TENSOR);
  const int context = fsdp_mesh_size(&kind->mesh, FSDP_AXIS_CONTEXT);
  if (by == LOSS_BY_EXPERTS)
    snprintf(out, 96, "expert=%d", fsdp_mesh_size(&kind->mesh, FSDP_AXIS_EXPERT));
  else if (by == LOSS_BY_CUTS)
    snprintf(out, 96, "tensor=%d, context=%d%s", tensor, context,
             tensor == 1 || kind->sequence_parallel ? "" : ", whole rows");
  else
    snprintf(out, 96, "%s%s", fsdp_strategy_name(kind->strategy), kind->cpu_offload ? ", --cpu-offload" : "");
}

// Whether `a` was closer to being among the plans than `b`.
static bool is_closer(const fsdp_search_kind *a, const fsdp_search_kind *b) {
  if (a->outcome != b->outcome) return a->outcome < b->outcome;
  return a->outcome == FSDP_SEARCH_TOO_LARGE ? a->bytes < b->bytes : a->step_s < b->step_s;
}

// How experts are divided is told of every size but the best plan's, also of those among the plans.
static bool has_lost(const fsdp_search_result *result, const loss *line) {
  if (line->best->outcome != FSDP_SEARCH_FINALIST) return true;
  return line->by == LOSS_BY_EXPERTS && line->best->hash != result->plans[0].hash;
}

static int list_losses(const fsdp_search_job *job, const fsdp_search_result *result,
                       loss losses[LOSSES_MAX]) {
  const bool routed = fsdp_model_expert_layers(&job->config.base.model) > 0;
  int count = 0;
  for (loss_class by = 0; by < LOSS_CLASS_COUNT; by++) {
    if (by == LOSS_BY_EXPERTS && !routed) continue;
    for (int k = 0; k < result->kind_count; k++) {
      const fsdp_search_kind *kind = &result->kinds[k];
      char name[96];
      name_class(kind, by, name);
      int at = 0;
      while (at < count && strcmp(losses[at].name, name) != 0) at++;
      if (at == count && count == LOSSES_MAX) continue;
      if (at == count) {
        losses[count] = (loss){.by = by, .best = kind};
        memcpy(losses[count++].name, name, sizeof name);
      } else if (is_closer(kind, losses[at].best)) {
        losses[at].best = kind;
      }
    }
  }
  int kept = 0;
  for (int i = 0; i < count; i++)
    if (has_lost(result, &losses[i])) losses[kept++] = losses[i];
  return kept;
}

// Of the plan with this program, from 1.
static int number_of(const fsdp_search_result *result, uint64_t hash) {
  int p = 0;
  while (p < result->count && result->plans[p].hash != hash) p++;
  FSDP_CHECK(p < result->count, "a program that is no plan's");
  return p + 1;
}

static void explain(const fsdp_search_job *job, const fsdp_search_result *result,
                    const fsdp_search_kind *kind, char out[REASON_BYTES]) {
  char mesh[FSDP_MESH_TEXT_BYTES];
  const double best = result->plans[0].step_s, last = result->plans[result->count - 1].step_s;
  const fsdp_memory_limits allowed = fsdp_search_allowed(&job->config);
  const int64_t own = allowed.bytes[kind->space], most = own ? own : allowed.shared_bytes;
  fsdp_mesh_print(&kind->mesh, ",", mesh);
  switch (kind->outcome) {
  case FSDP_SEARCH_FINALIST: {
    const fsdp_search_plan *plan = &result->plans[number_of(result, kind->hash) - 1];
    snprintf(out, REASON_BYTES, "%s: plan %d, %.1f%% slower; exposed communication %.1f%%, bound by %s", mesh,
             number_of(result, kind->hash), 100 * (plan->step_s / best - 1),
             100 * plan->comm_s / plan->step_s, fsdp_search_bound_name(plan->bound));
    break;
  }
  case FSDP_SEARCH_SAME:
    snprintf(out, REASON_BYTES, "%s: the same program as plan %d", mesh, number_of(result, kind->hash));
    break;
  case FSDP_SEARCH_SLOWER:
    snprintf(out, REASON_BYTES, "%s: %s, %.1f%% slower; bound by %s", mesh,
             fsdp_price_print_ms(kind->step_s).text, 100 * (kind->step_s / best - 1),
             fsdp_search_bound_name(kind->bound));
    break;
  case FSDP_SEARCH_TOO_SLOW: // by its bound alone, or every setting was left out for its time
    if (kind->step_s < last)
      snprintf(out, REASON_BYTES, "%s: no setting is estimated to be as fast as the last plan above", mesh);
    else
      snprintf(out, REASON_BYTES, "%s: at least %s for its %s", mesh, fsdp_price_print_ms(kind->step_s).text,
               fsdp_search_bound_name(kind->bound));
    break;
  case FSDP_SEARCH_TOO_LARGE:
    snprintf(out, REASON_BYTES, "%s: %s does not fit, needs at least %s on the %s of %s", mesh,
             kind->left_out ? "what would be as fast" : "it", fsdp_print_bytes(kind->bytes).text,
             kind->space == FSDP_SPACE_DEVICE ? "device" : "host", fsdp_print_bytes(most).text);
    break;
  default:
    snprintf(out, REASON_BYTES, "%s: no plan: the batch or the sequence cannot be divided so", mesh);
  }
}

// ---- Text

static void print_plan(const fsdp_search_job *job, const fsdp_search_plan *plan, int number, FILE *out) {
  char mesh[FSDP_MESH_TEXT_BYTES];
  const fsdp_plan_config *c = &plan->config;
  fprintf(out, "%2d. %s a step, %s tokens/s", number, fsdp_price_print_ms(plan->step_s).text,
          fsdp_print_int((int64_t)plan->tokens_per_s).text);
  if (plan->mfu > 0) fprintf(out, ", %.1f%% MFU", 100 * plan->mfu);
  fprintf(out, "; %s on the device", fsdp_print_bytes(plan->bytes[FSDP_SPACE_DEVICE]).text);
  const double copies = plan->copies_s / plan->step_s; // of tokens alone, next to nothing
  if (plan->config.cpu_offload || copies >= 0.0005)
    fprintf(out, ", %s a rank on the host (%s a node)", fsdp_print_bytes(plan->bytes[FSDP_SPACE_HOST]).text,
            fsdp_print_bytes(plan->bytes[FSDP_SPACE_HOST] * job->config.ranks_per_node).text);
  fprintf(out, "; bound by %s\n    %s over %s, %" PRId64 " x %d sequences a rank", // the plan in short
          fsdp_search_bound_name(plan->bound), fsdp_strategy_name(c->strategy),
          fsdp_mesh_print(&c->mesh, ",", mesh), c->batch, c->micro_batches);
  fprintf(out, "; exposed communication %.1f%%", 100 * plan->comm_s / plan->step_s);
  if (copies >= 0.0005) fprintf(out, ", copies %.1f%%", 100 * copies);
  fprintf(out, "; drafts off by %+.1f%%", 100 * (plan->draft_s / plan->step_s - 1));
  const double waits = plan->step_s / plan->unhindered_s - 1;
  if (waits >= 0.001) fprintf(out, "; waits for memory to be free %.1f%%", 100 * waits);
  fputc('\n', out);
}

// The settings outside the search's grid: its best plan is the best of the grid alone.
static void print_grid(const fsdp_search_job *job, const fsdp_search_result *result, FILE *out) {
  const bool limited = job->config.limit_bytes[FSDP_SPACE_DEVICE] || job->config.shared_limit_bytes;
  if (limited)
    fprintf(out, "%g%% of the device's memory stays free (--memory-margin)\n", 100 * job->config.margin);
  if (result->least_cut_s > 0)
    fprintf(out, "kinds that were left out for their bounds take at least %s\n",
            fsdp_price_print_ms(result->least_cut_s).text);
  fprintf(out, "%s\n", fsdp_search_untried());
}

// Of the run that `plan` makes of the options' length.
static fsdp_run_price run_of(const fsdp_search_job *job, const fsdp_search_found *found,
                             const fsdp_options *options, const fsdp_search_plan *plan) {
  const double step_tokens = (double)(job->config.global_batch * job->config.base.seq);
  return fsdp_run_price_of(found->steps, step_tokens, plan->step_s, job->config.ranks, options->gpu_hour);
}

// What was asked, in a line or two: whether it fits, the batch, how fast it is, what the run takes.
static void print_answer(const fsdp_search_job *job, const fsdp_search_found *found,
                         const fsdp_options *options, FILE *out) {
  const fsdp_search_plan *best = &found->result.plans[0];
  const fsdp_run_price run = run_of(job, found, options, best);
  char text[FSDP_RUN_PRICE_BYTES];
  fprintf(out, "best:      plan 1 fits %d rank%s of %s: %s sequence%s a step in %s, %s tokens/s\n",
          job->config.ranks, fsdp_plural(job->config.ranks), job->config.profile->name,
          fsdp_print_int(job->config.global_batch).text, fsdp_plural(job->config.global_batch),
          fsdp_price_print_ms(best->step_s).text, fsdp_print_int((int64_t)best->tokens_per_s).text);
  if (run.steps) fprintf(out, "run:       %s\n", fsdp_run_price_print(&run, text));
}

// The answer, the plans with the commands that run them, then why other kinds lost.
static fsdp_status print_text(const fsdp_search_job *job, const fsdp_search_found *found,
                              fsdp_options *options, FILE *out, fsdp_error *error) {
  const fsdp_search_result *result = &found->result;
  fsdp_report_print_model(job->setup.model_name, &job->config.base.model, job->config.base.seq, out);
  print_answer(job, found, options, out);
  fprintf(out, "%d kind%s of plans for %d rank%s, %s sequence%s a step; %s drafts, %s whole plans\n",
          result->kind_count, fsdp_plural(result->kind_count), job->config.ranks,
          fsdp_plural(job->config.ranks), fsdp_print_int(job->config.global_batch).text,
          fsdp_plural(job->config.global_batch), fsdp_print_int(result->drafts).text,
          fsdp_print_int(result->whole).text);
  for (int i = 0; i < found->note_count; i++) fprintf(out, "%s\n", found->notes[i]);
  print_grid(job, result, out);
  for (int i = 0; i < result->count; i++) {
    fsdp_status status =
        fsdp_search_take(job, &result->plans[i].config, FSDP_PROGRAM_PLAN, PLACE, options, error);
    if (status) return status;
    char *command = fsdp_search_command(job, options);
    print_plan(job, &result->plans[i], i + 1, out);
    const fsdp_run_price run = run_of(job, found, options, &result->plans[i]);
    char text[FSDP_RUN_PRICE_BYTES];
    if (run.steps) fprintf(out, "    %s\n", fsdp_run_price_print(&run, text));
    fprintf(out, "    %s\n", command);
    free(command);
  }
  loss losses[LOSSES_MAX];
  const int count = list_losses(job, result, losses);
  if (count) fprintf(out, "what lost, with the best of its kinds:\n");
  for (int i = 0; i < count; i++) {
    char reason[REASON_BYTES];
    explain(job, result, losses[i].best, reason);
    fprintf(out, "    %-32s %s\n", losses[i].name, reason);
  }
  return FSDP_OK;
}

// ---- JSON

static void add_option(void *context, const char *name, const char *value) {
  FSDP_CHECK(json_object_set_new(context, name, json_string(value)) == 0, "JSON of a plan's options");
}

static json_t *plan_json(const fsdp_search_job *job, const fsdp_search_plan *plan,
                         const fsdp_options *options) {
  char hash[24];
  snprintf(hash, sizeof hash, "%016" PRIx64, plan->hash);
  char *command = fsdp_search_command(job, options);
  json_t *json =
      json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:s, s:s, s:s, s:o}", "step_ms",
                plan->step_s * 1e3, "draft_ms", plan->draft_s * 1e3, "estimate_ms", plan->estimate_s * 1e3,
                "unhindered_ms", plan->unhindered_s * 1e3, "tokens_per_s", plan->tokens_per_s, "mfu",
                plan->mfu, "exposed_comm_ms", plan->comm_s * 1e3, "exposed_copies_ms", plan->copies_s * 1e3,
                "device_bytes", (json_int_t)plan->bytes[FSDP_SPACE_DEVICE], "host_bytes",
                (json_int_t)plan->bytes[FSDP_SPACE_HOST], "bound_by", fsdp_search_bound_name(plan->bound),
                "hash", hash, "command", command, "options", json_object());
  FSDP_CHECK(json, "JSON of a plan");
  free(command);
  fsdp_search_each_option(job, options, add_option, json_object_get(json, "options"));
  return json;
}

static json_t *loss_json(const fsdp_search_job *job, const fsdp_search_result *result, const loss *lost) {
  static const char *const outcomes[] = {"among the plans", "the same",  "slower",
                                         "too slow",        "too large", "impossible"};
  char reason[REASON_BYTES], mesh[FSDP_MESH_TEXT_BYTES];
  const fsdp_search_kind *kind = lost->best;
  explain(job, result, kind, reason);
  return json_pack("{s:s, s:s, s:s, s:s, s:f, s:I}", "kind", lost->name, "mesh",
                   fsdp_mesh_print(&kind->mesh, ",", mesh), "outcome", outcomes[kind->outcome], "reason",
                   reason, "step_ms", kind->step_s * 1e3, "bytes", (json_int_t)kind->bytes);
}

// {"plans": [{step_ms, draft_ms, estimate_ms, unhindered_ms, tokens_per_s, mfu, device_bytes, host_bytes,
// bound_by, hash, command, options}], "lost": [{kind, outcome, reason, ...}], "notes", "global_batch",
// "kinds", "drafts", "planned"}.
static fsdp_status print_json(const fsdp_search_job *job, const fsdp_search_found *found,
                              fsdp_options *options, fsdp_error *error) {
  const fsdp_search_result *result = &found->result;
  json_t *plans = json_array(), *lost = json_array(), *notes = json_array();
  fsdp_status status = FSDP_OK;
  for (int i = 0; i < result->count && status == FSDP_OK; i++) {
    status = fsdp_search_take(job, &result->plans[i].config, FSDP_PROGRAM_PLAN, PLACE, options, error);
    if (status) break;
    json_t *plan = plan_json(job, &result->plans[i], options);
    const fsdp_run_price run = run_of(job, found, options, &result->plans[i]);
    fsdp_run_price_json(&run, plan);
    json_array_append_new(plans, plan);
  }
  loss losses[LOSSES_MAX];
  const int count = list_losses(job, result, losses);
  for (int i = 0; i < count; i++) json_array_append_new(lost, loss_json(job, result, &losses[i]));
  for (int i = 0; i < found->note_count; i++) json_array_append_new(notes, json_string(found->notes[i]));
  json_t *root = json_pack("{s:o, s:o, s:o, s:I, s:i, s:I, s:I, s:f, s:f, s:s}", "plans", plans, "lost", lost,
                           "notes", notes, "global_batch", (json_int_t)job->config.global_batch, "kinds",
                           result->kind_count, "drafts", (json_int_t)result->drafts, "planned",
                           (json_int_t)result->whole, "memory_margin", job->config.margin, "least_cut_ms",
                           result->least_cut_s * 1e3, "untried", fsdp_search_untried());
  if (status == FSDP_OK)
    fsdp_output_json(root);
  else
    json_decref(root);
  return status;
}

// ---- The search

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

// The options are those of the best plan in the end.
static fsdp_status print(const fsdp_search_job *job, const fsdp_search_found *found, fsdp_options *options,
                         fsdp_error *error) {
  fsdp_status status =
      options->json ? print_json(job, found, options, error) : print_text(job, found, options, stdout, error);
  if (status) return status;
  return fsdp_search_take(job, &found->result.plans[0].config, FSDP_PROGRAM_PLAN, PLACE, options, error);
}

static fsdp_status save(const fsdp_search_result *result, const fsdp_search_job *job,
                        const fsdp_options *options, fsdp_error *error) {
  char note[256];
  if (!options->save_plan) return FSDP_OK;
  snprintf(note, sizeof note, "fsdp_plan --search for %d ranks, %d a node, of %s: %s a step",
           job->config.ranks, job->config.ranks_per_node, job->config.profile->name,
           fsdp_price_print_ms(result->plans[0].step_s).text);
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
    fsdp_setup_warn_of_limits(options, &ranks, job.config.profile, "fsdp_plan", stderr);
    if (status == FSDP_OK) fsdp_note_threads(options, job.config.profile, "fsdp_plan", stderr);
    if (isatty(STDERR_FILENO)) job.config.progress = tell;
    job.config.context = &w;
    status = fsdp_search_find(options, &job, &found, error);
  }
  if (w.printed) fputc('\n', stderr);
  if (status == FSDP_OK) status = print(&job, &found, options, error);
  if (status == FSDP_OK) status = save(&found.result, &job, options, error);
  fsdp_search_result_release(&found.result);
  fsdp_search_job_destroy(&job);
  return status;
}
