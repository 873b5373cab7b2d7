#include "launcher/programs/compare.h"

#include "launcher/report/report.h"
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"

#include <string.h>

static int64_t sent_bytes(const fsdp_plan *plan) {
  return fsdp_traffic_sent_bytes(&plan->traffic) + plan->traffic.scalar_bytes;
}

static const char *print_mesh(const fsdp_plan *plan, char out[FSDP_MESH_TEXT_BYTES]) {
  return fsdp_mesh_print(&plan->config.mesh, ",", out);
}

// The columns behind the others: what a step takes, and the run, where its length is known. A file may ask
// for what another one does not.
typedef struct price_columns {
  bool step, run, cost;
} price_columns;

static price_columns find_price_columns(const fsdp_compare_row *rows, int count) {
  price_columns c = {0};
  for (int i = 0; i < count; i++) {
    const fsdp_price_report *price = rows[i].price;
    if (!price) continue;
    c.step = true;
    c.run = c.run || price->run.steps;
    c.cost = c.cost || price->run.cost > 0;
  }
  return c;
}

static void print_price(const fsdp_price_report *price, const price_columns *c, FILE *out) {
  char step[FSDP_PRICE_MS_BYTES] = "-", tokens[48] = "-", hours[32] = "-", gpu_hours[32] = "-",
       cost[32] = "-";
  if (price) {
    fsdp_price_print_ms(price->step.step_s, step);
    fsdp_print_int((int64_t)price->tokens_per_s, tokens, sizeof tokens);
  }
  if (price && price->run.steps) {
    snprintf(hours, sizeof hours, "%.2f", price->run.hours);
    snprintf(gpu_hours, sizeof gpu_hours, "%.1f", price->run.gpu_hours);
  }
  if (price && price->run.cost > 0) snprintf(cost, sizeof cost, "%.2f", price->run.cost);
  if (c->step) fprintf(out, "  %10s  %10s", step, tokens);
  if (c->run) fprintf(out, "  %9s  %9s", hours, gpu_hours);
  if (c->cost) fprintf(out, "  %10s", cost);
}

static void print_price_names(const price_columns *c, FILE *out) {
  if (c->step) fprintf(out, "  %10s  %10s", "step", "tokens/s");
  if (c->run) fprintf(out, "  %9s  %9s", "hours", "GPU hours");
  if (c->cost) fprintf(out, "  %10s", "cost");
}

void fsdp_compare_print(const fsdp_compare_row *rows, int count, FILE *out) {
  const price_columns prices = find_price_columns(rows, count);
  int name_width = 4, mesh_width = 4;
  char mesh[FSDP_MESH_TEXT_BYTES];
  for (int i = 0; i < count; i++) {
    name_width = (int)fsdp_max_i64(name_width, (int64_t)strlen(rows[i].name));
    mesh_width = (int)fsdp_max_i64(mesh_width, (int64_t)strlen(print_mesh(rows[i].plan, mesh)));
  }
  fprintf(out, "%-*s  %-8s  %-*s  %-6s  %9s  %9s  %9s  %9s  %9s  %12s  %-4s", name_width, "name", "strategy",
          mesh_width, "mesh", "device", "valley", "peak", "arena", "host", "sent", "instructions", "fits");
  print_price_names(&prices, out);
  fputc('\n', out);
  for (int i = 0; i < count; i++) {
    const fsdp_plan *plan = rows[i].plan;
    const fsdp_memory_space_report *device = &plan->memory.space[FSDP_SPACE_DEVICE];
    char valley[24], peak[24], arena[24], host[24], sent[24];
    fprintf(out, "%-*s  %-8s  %-*s  %-6s  %9s  %9s  %9s  %9s  %9s  %12d  %-4s", name_width, rows[i].name,
            fsdp_strategy_name(plan->config.strategy), mesh_width, print_mesh(plan, mesh),
            plan->config.backend->name, fsdp_print_bytes(device->valley_bytes, valley, sizeof valley),
            fsdp_print_bytes(device->peak_bytes, peak, sizeof peak),
            fsdp_print_bytes(device->arena_bytes, arena, sizeof arena),
            fsdp_print_bytes(plan->memory.space[FSDP_SPACE_HOST].arena_bytes, host, sizeof host),
            fsdp_print_bytes(sent_bytes(plan), sent, sizeof sent), plan->program->instr_count,
            rows[i].fits ? "yes" : "no");
    print_price(rows[i].price, &prices, out);
    fputc('\n', out);
  }
}

json_t *fsdp_compare_json(const fsdp_compare_row *rows, int count) {
  json_t *plans = json_array();
  for (int i = 0; i < count; i++) {
    const fsdp_plan *plan = rows[i].plan;
    const fsdp_memory_space_report *device = &plan->memory.space[FSDP_SPACE_DEVICE];
    json_t *entry = json_pack(
        "{s:s, s:s, s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:i, s:b}", "name", rows[i].name, "strategy",
        fsdp_strategy_name(plan->config.strategy), "mesh", fsdp_mesh_json(&plan->config.mesh), "device",
        plan->config.backend->name, "valley_bytes", (json_int_t)device->valley_bytes, "peak_bytes",
        (json_int_t)device->peak_bytes, "arena_bytes", (json_int_t)device->arena_bytes, "host_bytes",
        (json_int_t)plan->memory.space[FSDP_SPACE_HOST].arena_bytes, "sent_bytes",
        (json_int_t)sent_bytes(plan), "instructions", plan->program->instr_count, "fits", rows[i].fits);
    FSDP_CHECK(entry && json_array_append_new(plans, entry) == 0, "JSON of the plan %s", rows[i].name);
    if (!rows[i].price) continue;
    json_object_set_new(entry, "step_ms", json_real(1e3 * rows[i].price->step.step_s));
    json_object_set_new(entry, "tokens_per_s", json_real(rows[i].price->tokens_per_s));
    fsdp_run_price_json(&rows[i].price->run, entry);
  }
  json_t *root = json_object();
  FSDP_CHECK(json_object_set_new(root, "plans", plans) == 0, "JSON of plans");
  return root;
}
