#include "launcher/programs/plan_commands.h"

#include "launcher/programs/run_length.h"
#include "launcher/programs/unfit.h"
#include "launcher/report/output.h"
#include "launcher/setup/document_work.h"
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"
#include "runtime/plan/text/plan_json.h"

#include <stdlib.h>
#include <string.h>

// A file, and the plan of its options.
typedef struct row {
  const char *name;
  fsdp_options options;
  fsdp_setup setup;
  fsdp_price_report price; // with --price
  bool fits;
  char reason[FSDP_UNFIT_REASON_BYTES]; // why not
} row;

// "runs/a.yaml" is a.
static char *short_name(char *path) {
  char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path, *end = strrchr(name, '.');
  if (end && end > name) *end = 0;
  return name;
}

static fsdp_status plan_one(row *r, char *path, int argc, char **argv, fsdp_error *error) {
  fsdp_status status = fsdp_options_parse_compared(&r->options, FSDP_PROGRAM_PLAN, argc, argv, path, error);
  if (status != FSDP_OK) return status;
  if (*r->options.overridden)
    fprintf(stderr, "fsdp_plan: note: %s: given otherwise on the command line: %s\n", r->options.config,
            r->options.overridden);
  status = fsdp_document_work_plan(&r->options, &r->setup, error);
  const fsdp_setup_ranks ranks = fsdp_setup_ranks_planned(&r->options);
  fsdp_setup_warn_of_limits(&r->options, &ranks, r->setup.profile, "fsdp_plan", stderr);
  r->name = short_name(path);
  r->fits = status == FSDP_OK;
  if (!r->fits) snprintf(r->reason, sizeof r->reason, "%.1000s", error->message);
  if (r->fits || (status == FSDP_ERR_CAPACITY && r->setup.plan))
    status = r->options.price ? fsdp_run_length_price(&r->options, &r->setup, &r->price, error) : FSDP_OK;
  char note[FSDP_RUN_LENGTH_NOTE_BYTES];
  if (status == FSDP_OK && r->options.price &&
      fsdp_run_length_note(&r->options, (int64_t)fsdp_plan_step_tokens(r->setup.plan), note))
    fprintf(stderr, "fsdp_plan: note: %s: %s\n", r->options.config, note);
  if (status == FSDP_OK) return status;
  const fsdp_error reason = *error;
  return fsdp_fail(error, status, "%s: %.900s", r->options.config, reason.message);
}

// ---- The table

// Its columns of bytes.
static const struct {
  const char *title, *key;
} columns[] = {{"valley", "valley_bytes"},
               {"peak", "peak_bytes"},
               {"arena", "arena_bytes"},
               {"host", "host_bytes"},
               {"sent", "sent_bytes"}};
enum { COLUMNS = sizeof columns / sizeof *columns };

static void list_bytes(const fsdp_plan *plan, int64_t bytes[COLUMNS]) {
  const fsdp_memory_space_report *device = &plan->memory.space[FSDP_SPACE_DEVICE];
  bytes[0] = device->valley_bytes;
  bytes[1] = device->peak_bytes;
  bytes[2] = device->arena_bytes;
  bytes[3] = plan->memory.space[FSDP_SPACE_HOST].arena_bytes;
  bytes[4] = fsdp_traffic_sent_bytes(&plan->traffic) + plan->traffic.scalar_bytes;
}

static const char *print_mesh(const row *r, char out[FSDP_MESH_TEXT_BYTES]) {
  return fsdp_mesh_print(&r->setup.plan->config.mesh, ",", out);
}

// The columns behind the others: what a step takes, and the run, where its length is known. A file may ask
// for what another one does not.
typedef struct price_columns {
  bool step, run, cost;
} price_columns;

static price_columns find_price_columns(const row *rows, int count) {
  price_columns c = {0};
  for (int i = 0; i < count; i++) {
    c.step = c.step || rows[i].options.price;
    c.run = c.run || rows[i].price.run.steps;
    c.cost = c.cost || rows[i].price.run.cost > 0;
  }
  return c;
}

static void print_price(const row *r, const price_columns *c, FILE *out) {
  const fsdp_run_price *run = &r->price.run;
  fsdp_number_text step = {"-"}, tokens = {"-"};
  fsdp_run_text text = {{"-"}, {"-"}, {"-"}};
  if (r->options.price) {
    step = fsdp_price_print_ms(r->price.step.step_s);
    tokens = fsdp_print_int((int64_t)r->price.tokens_per_s);
  }
  if (run->steps) text = fsdp_run_price_text(run);
  if (c->step) fprintf(out, "  %10s  %10s", step.text, tokens.text);
  if (c->run) fprintf(out, "  %9s  %9s", text.hours.text, text.gpu_hours.text);
  if (c->cost) fprintf(out, "  %10s", text.cost.text);
  fputc('\n', out);
}

static void print_names(const price_columns *c, int name_width, int mesh_width, FILE *out) {
  fprintf(out, "%-*s  %-8s  %-*s  %-6s", name_width, "name", "strategy", mesh_width, "mesh", "device");
  for (int b = 0; b < COLUMNS; b++) fprintf(out, "  %9s", columns[b].title);
  fprintf(out, "  %12s  %-4s", "instructions", "fits");
  if (c->step) fprintf(out, "  %10s  %10s", "step", "tokens/s");
  if (c->run) fprintf(out, "  %9s  %9s", "hours", "GPU hours");
  if (c->cost) fprintf(out, "  %10s", "cost");
  fputc('\n', out);
}

static void print_table(const row *rows, int count, FILE *out) {
  const price_columns prices = find_price_columns(rows, count);
  int64_t bytes[COLUMNS];
  int name_width = 4, mesh_width = 4;
  char mesh[FSDP_MESH_TEXT_BYTES];
  for (int i = 0; i < count; i++) {
    name_width = (int)fsdp_max_i64(name_width, (int64_t)strlen(rows[i].name));
    mesh_width = (int)fsdp_max_i64(mesh_width, (int64_t)strlen(print_mesh(&rows[i], mesh)));
  }
  print_names(&prices, name_width, mesh_width, out);
  for (int i = 0; i < count; i++) {
    const fsdp_plan *plan = rows[i].setup.plan;
    list_bytes(plan, bytes);
    fprintf(out, "%-*s  %-8s  %-*s  %-6s", name_width, rows[i].name,
            fsdp_strategy_name(plan->config.strategy), mesh_width, print_mesh(&rows[i], mesh),
            plan->config.backend->name);
    for (int b = 0; b < COLUMNS; b++) fprintf(out, "  %9s", fsdp_print_bytes(bytes[b]).text);
    fprintf(out, "  %12d  %-4s", plan->program->instr_count, rows[i].fits ? "yes" : "no");
    print_price(&rows[i], &prices, out);
  }
  for (int i = 0; i < count; i++)
    if (!rows[i].fits) fsdp_unfit_print(rows[i].name, rows[i].reason, out);
}

static json_t *row_json(const row *r) {
  const fsdp_plan *plan = r->setup.plan;
  int64_t bytes[COLUMNS];
  list_bytes(plan, bytes);
  json_t *entry = json_pack("{s:s, s:s, s:o, s:s}", "name", r->name, "strategy",
                            fsdp_strategy_name(plan->config.strategy), "mesh",
                            fsdp_mesh_json(&plan->config.mesh), "device", plan->config.backend->name);
  FSDP_CHECK(entry, "JSON of the plan %s", r->name);
  for (int b = 0; b < COLUMNS; b++) json_object_set_new(entry, columns[b].key, json_integer(bytes[b]));
  json_object_set_new(entry, "instructions", json_integer(plan->program->instr_count));
  json_object_set_new(entry, "fits", json_boolean(r->fits));
  if (!r->fits) json_object_set_new(entry, "reason", json_string(r->reason));
  if (!r->options.price) return entry;
  json_object_set_new(entry, "step_ms", json_real(1e3 * r->price.step.step_s));
  json_object_set_new(entry, "tokens_per_s", json_real(r->price.tokens_per_s));
  fsdp_run_price_json(&r->price.run, entry);
  return entry;
}

static void print_json(const row *rows, int count) {
  json_t *plans = json_array();
  for (int i = 0; i < count; i++) json_array_append_new(plans, row_json(&rows[i]));
  fsdp_output_json(json_pack("{s:o}", "plans", plans));
}

static fsdp_status check_any(const fsdp_options *options, const row *rows, int count, fsdp_error *error) {
  for (int i = 0; i < count; i++)
    if (rows[i].fits) return FSDP_OK;
  return fsdp_unfit_fail(options, "compare", "none of these plans fits", "a larger --memory-limit", error);
}

fsdp_status fsdp_compare_plans(const fsdp_options *options, int argc, char **argv, fsdp_error *error) {
  char *names = fsdp_strdup(options->compare, "a text"), *rest = names; // cut at its commas
  int count = 1;
  for (const char *at = names; *at; at++) count += *at == ',';
  row *rows = fsdp_alloc_zeroed((size_t)count, sizeof *rows);
  fsdp_status status = FSDP_OK;
  for (int i = 0; i < count && status == FSDP_OK; i++)
    status = plan_one(&rows[i], strsep(&rest, ","), argc, argv, error);
  if (status == FSDP_OK && options->json) print_json(rows, count);
  if (status == FSDP_OK && !options->json) print_table(rows, count, stdout);
  if (status == FSDP_OK) status = check_any(options, rows, count, error);
  for (int i = 0; i < count; i++) {
    fsdp_price_report_release(&rows[i].price);
    fsdp_setup_destroy(&rows[i].setup);
    fsdp_options_destroy(&rows[i].options);
  }
  free(rows);
  free(names);
  return status;
}
