#include "launcher/programs/plan_commands.h"

#include "launcher/programs/run_length.h"
#include "launcher/programs/search_batch.h"
#include "launcher/programs/search_command.h"
#include "launcher/programs/unfit.h"
#include "launcher/report/output.h"
#include "launcher/report/report.h"
#include "launcher/setup/document_work.h"
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define PLACE        "--machines"
#define MACHINES_MAX 16

// A machine of the list, and the plan for it.
typedef struct machine {
  char ranks[24], profile[512];
  double gpu_hour; // 0: --gpu-hour
  fsdp_options options;
  bool fits;
  double step_s, tokens_per_s, mfu;
  int64_t batch, bytes[FSDP_SPACE_COUNT];
  fsdp_run_price run;
  char *command; // owned; NULL: the plan was given
  char notes[FSDP_SEARCH_NOTES_MAX][FSDP_SEARCH_NOTE_BYTES];
  int note_count;
  char reason[FSDP_UNFIT_REASON_BYTES]; // why nothing fits
} machine;

// ---- The list

static char *trimmed(char *text) {
  while (isspace((unsigned char)*text)) text++;
  for (char *end = text + strlen(text); end > text && isspace((unsigned char)end[-1]);) *--end = 0;
  return text;
}

// "8 h100-sxm @2.5".
static bool read_machine(char *text, machine *m) {
  char *price = strchr(text, '@'), *rest;
  if (price) {
    *price++ = 0;
    m->gpu_hour = strtod(price, &rest);
    if (rest == price || *trimmed(rest) || !(m->gpu_hour > 0)) return false;
  }
  text = trimmed(text);
  const size_t digits = strspn(text, "0123456789_");
  if (!digits || digits >= sizeof m->ranks || !isspace((unsigned char)text[digits])) return false;
  memcpy(m->ranks, text, digits);
  const char *profile = trimmed(text + digits);
  if (!*profile || strlen(profile) >= sizeof m->profile) return false;
  strcpy(m->profile, profile);
  return true;
}

static fsdp_status read_list(const fsdp_options *options, machine *machines, int *count, fsdp_error *error) {
  char *copy = fsdp_strdup(options->machines, "a list of machines");
  fsdp_status status = FSDP_OK;
  *count = 0;
  for (char *rest = copy, *item; status == FSDP_OK && (item = strsep(&rest, ","));) {
    char shown[128];
    snprintf(shown, sizeof shown, "%s", trimmed(item));
    if (*count == MACHINES_MAX || !read_machine(item, &machines[*count]))
      status = fsdp_fail(error, FSDP_ERR_OPTION,
                         "--machines '%s' (%s): use up to %d machines as ranks and a profile, with what a "
                         "rank's hour costs if that differs: \"16 a100-40 @1.8, 8 h100-sxm @2.5\"",
                         shown, fsdp_options_place(options, "machines"), MACHINES_MAX);
    else
      ++*count;
  }
  free(copy);
  return status;
}

// ---- One machine

static fsdp_status search(machine *m, const fsdp_setup_ranks *ranks, fsdp_error *error) {
  fsdp_search_job job;
  fsdp_search_found found = {.note_count = 0};
  fsdp_status status = fsdp_search_job_create(&m->options, FSDP_PROGRAM_PLAN, ranks, NULL, &job, error);
  if (status == FSDP_OK)
    fsdp_setup_warn_of_limits(&m->options, ranks, job.config.profile, "fsdp_plan", stderr);
  if (status == FSDP_OK) status = fsdp_search_find(&m->options, &job, &found, error);
  if (status == FSDP_OK) {
    const fsdp_search_plan *plan = &found.result.plans[0];
    const double step_tokens = (double)(job.config.global_batch * job.config.base.seq);
    m->fits = true;
    m->step_s = plan->step_s, m->tokens_per_s = plan->tokens_per_s, m->mfu = plan->mfu;
    m->batch = job.config.global_batch;
    memcpy(m->bytes, plan->bytes, sizeof m->bytes);
    m->run = fsdp_run_price_of(found.steps, step_tokens, plan->step_s, ranks->ranks, m->options.gpu_hour);
    memcpy(m->notes, found.notes, sizeof m->notes);
    m->note_count = found.note_count;
    status = fsdp_search_take(&job, &plan->config, FSDP_PROGRAM_PLAN, PLACE, &m->options, error);
    if (status == FSDP_OK) m->command = fsdp_search_command(&job, &m->options);
  }
  fsdp_search_result_release(&found.result);
  fsdp_search_job_destroy(&job);
  return status;
}

static fsdp_status price(machine *m, const fsdp_setup_ranks *ranks, fsdp_error *error) {
  fsdp_setup setup = {0};
  fsdp_price_report report = {0};
  fsdp_status status = fsdp_setup_create(&m->options, FSDP_PROGRAM_PLAN, ranks, &setup, error);
  fsdp_setup_warn_of_limits(&m->options, ranks, setup.profile, "fsdp_plan", stderr);
  if (status == FSDP_OK) status = fsdp_document_work_find(&m->options, &setup, &setup.plan->config, error);
  if (status == FSDP_OK) status = fsdp_run_length_price(&m->options, &setup, &report, error);
  if (status == FSDP_OK) {
    m->fits = true;
    m->step_s = report.step.step_s, m->tokens_per_s = report.tokens_per_s, m->mfu = report.mfu_causal;
    m->batch = (int64_t)fsdp_plan_step_tokens(setup.plan) / setup.plan->config.seq;
    for (int s = 0; s < FSDP_SPACE_COUNT; s++) m->bytes[s] = setup.plan->memory.space[s].arena_bytes;
    m->run = report.run;
    m->note_count = fsdp_run_length_note(&m->options, m->batch * setup.plan->config.seq, m->notes[0]);
  }
  fsdp_price_report_release(&report);
  fsdp_setup_destroy(&setup);
  return status;
}

// A machine on which the plan does not fit is a row of the table, not an error.
static fsdp_status judge(machine *m, int argc, char **argv, fsdp_error *error) {
  char hour[32];
  fsdp_status status = fsdp_options_parse(&m->options, FSDP_PROGRAM_PLAN, argc, argv, error);
  if (status == FSDP_OK)
    status = fsdp_options_set(&m->options, FSDP_PROGRAM_PLAN, "ranks", m->ranks, PLACE, error);
  if (status == FSDP_OK)
    status = fsdp_options_set(&m->options, FSDP_PROGRAM_PLAN, "profile", m->profile, PLACE, error);
  if (status == FSDP_OK && m->gpu_hour > 0)
    status = fsdp_options_set(&m->options, FSDP_PROGRAM_PLAN, "gpu-hour",
                              fsdp_print_real(m->gpu_hour, hour, sizeof hour), PLACE, error);
  if (status) return status;
  const fsdp_setup_ranks ranks = fsdp_setup_ranks_planned(&m->options);
  status = m->options.price ? price(m, &ranks, error) : search(m, &ranks, error);
  snprintf(m->reason, sizeof m->reason, "%.1000s", status ? error->message : "");
  if (status != FSDP_OK && status != FSDP_ERR_CAPACITY)
    return fsdp_fail(error, status, "%s %.100s of " PLACE ": %.900s", m->ranks, m->profile, m->reason);
  *error = (fsdp_error){0};
  return FSDP_OK;
}

// ---- The table

static void print_row(const machine *m, int width, bool runs, FILE *out) {
  char mfu[16] = "-";
  fprintf(out, "%-*s  %6s", width, m->profile, m->ranks);
  if (!m->fits) {
    fputs(m->options.price ? "  does not fit\n" : "  nothing fits\n", out); // the given plan, or any
    return;
  }
  if (m->mfu > 0) snprintf(mfu, sizeof mfu, "%.1f%%", 100 * m->mfu);
  fprintf(out, "  %12lld  %10s  %10s  %6s  %9s  %9s", (long long)m->batch,
          fsdp_price_print_ms(m->step_s).text, fsdp_print_int((int64_t)m->tokens_per_s).text, mfu,
          fsdp_print_bytes(m->bytes[FSDP_SPACE_DEVICE]).text,
          fsdp_print_bytes(m->bytes[FSDP_SPACE_HOST]).text);
  const fsdp_run_text run = fsdp_run_price_text(&m->run);
  if (runs) fprintf(out, "  %9s  %9s", run.hours.text, run.gpu_hours.text);
  if (runs && m->run.cost > 0) fprintf(out, "  %10s", run.cost.text);
  fputc('\n', out);
}

static double tokens_of_a_rank(const machine *m) {
  return m->tokens_per_s / (double)m->options.ranks;
}

// The fastest machine beside each other one: how much faster, and which is cheaper.
static void print_answer(const machine *machines, int count, FILE *out) {
  const machine *best = NULL;
  for (int i = 0; i < count; i++)
    if (machines[i].fits && (!best || machines[i].tokens_per_s > best->tokens_per_s)) best = &machines[i];
  for (int i = 0; i < count; i++) {
    const machine *m = &machines[i];
    if (!m->fits || m == best) continue;
    fprintf(out, "%s %s: %.2f times the tokens/s of %s %s, ", best->ranks, best->profile,
            best->tokens_per_s / m->tokens_per_s, m->ranks, m->profile);
    if (best->run.cost > 0 && m->run.cost > 0)
      fprintf(out, "for %.2f times the cost\n", best->run.cost / m->run.cost);
    else
      fprintf(out, "and cheaper if a rank's hour costs less than %.2f times as much\n",
              tokens_of_a_rank(best) / tokens_of_a_rank(m));
  }
}

static void print_table(const machine *machines, int count, FILE *out) {
  int width = 7;
  bool runs = false, costs = false;
  for (int i = 0; i < count; i++) {
    width = (int)fsdp_max_i64(width, (int64_t)strlen(machines[i].profile));
    runs = runs || machines[i].run.steps;
    costs = costs || machines[i].run.cost > 0;
  }
  fprintf(out, "%-*s  %6s  %12s  %10s  %10s  %6s  %9s  %9s%s%s\n", width, "machine", "ranks", "global batch",
          "step", "tokens/s", "MFU", "device", "host", runs ? "      hours  GPU hours" : "",
          costs ? "        cost" : "");
  for (int i = 0; i < count; i++) print_row(&machines[i], width, runs, out);
  print_answer(machines, count, out);
  for (int i = 0; i < count; i++) {
    const machine *m = &machines[i];
    if (!m->note_count && !*m->reason && !m->command) continue;
    fprintf(out, "\n%s %s:\n", m->ranks, m->profile);
    for (int n = 0; n < m->note_count; n++) fprintf(out, "    %s\n", m->notes[n]);
    if (*m->reason) fprintf(out, "    %s\n", m->reason);
    if (m->command) fprintf(out, "    %s\n", m->command);
  }
}

static fsdp_status print_text(const machine *machines, int count, fsdp_error *error) {
  const fsdp_options *options = &machines[0].options;
  fsdp_setup setup = {0};
  fsdp_model_config model;
  const fsdp_status status = fsdp_setup_read_model(options, &setup, &model, error);
  if (status == FSDP_OK) {
    fsdp_report_print_model(setup.model_name, &model, options->seq, stdout);
    print_table(machines, count, stdout);
  }
  fsdp_setup_destroy(&setup);
  return status;
}

static json_t *row_json(const machine *m) {
  json_t *notes = json_array();
  for (int i = 0; i < m->note_count; i++) json_array_append_new(notes, json_string(m->notes[i]));
  json_t *row = json_pack("{s:s, s:i, s:b, s:o}", "profile", m->profile, "ranks", (int)m->options.ranks,
                          "fits", m->fits, "notes", notes);
  FSDP_CHECK(row, "JSON of a machine");
  if (!m->fits) {
    json_object_set_new(row, "reason", json_string(m->reason));
    return row;
  }
  json_t *rest = json_pack("{s:I, s:f, s:f, s:f, s:I, s:I, s:s?}", "global_batch", (json_int_t)m->batch,
                           "step_ms", 1e3 * m->step_s, "tokens_per_s", m->tokens_per_s, "mfu", m->mfu,
                           "device_bytes", (json_int_t)m->bytes[FSDP_SPACE_DEVICE], "host_bytes",
                           (json_int_t)m->bytes[FSDP_SPACE_HOST], "command", m->command);
  FSDP_CHECK(rest && json_object_update(row, rest) == 0, "JSON of a machine's plan");
  json_decref(rest);
  fsdp_run_price_json(&m->run, row);
  return row;
}

static fsdp_status print(const machine *machines, int count, bool json, fsdp_error *error) {
  if (!json) return print_text(machines, count, error);
  json_t *rows = json_array();
  for (int i = 0; i < count; i++) json_array_append_new(rows, row_json(&machines[i]));
  fsdp_output_json(json_pack("{s:o}", "machines", rows));
  return FSDP_OK;
}

// Without a plan that fits there is nothing to compare.
static fsdp_status check_any(const fsdp_options *options, const machine *machines, int count,
                             fsdp_error *error) {
  for (int i = 0; i < count; i++)
    if (machines[i].fits) return FSDP_OK;
  return fsdp_unfit_fail(options, "machines",
                         options->price ? "the plan fits on none of them" : "a plan fits on none of them",
                         "machines of more ranks or memory", error);
}

fsdp_status fsdp_machines_compare(const fsdp_options *options, int argc, char **argv, fsdp_error *error) {
  machine *machines = fsdp_alloc_zeroed(MACHINES_MAX, sizeof *machines);
  int count;
  fsdp_status status = read_list(options, machines, &count, error);
  for (int i = 0; i < count && status == FSDP_OK; i++) status = judge(&machines[i], argc, argv, error);
  if (status == FSDP_OK) status = print(machines, count, options->json, error);
  if (status == FSDP_OK) status = check_any(options, machines, count, error);
  for (int i = 0; i < count; i++) {
    free(machines[i].command);
    fsdp_options_destroy(&machines[i].options);
  }
  free(machines);
  return status;
}
