#include "launcher/report/price.h"

#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "runtime/plan/search/variations.h"
#include "runtime/plan/sharding/factored.h"

#include <math.h>
#include <string.h>

static double step_at(fsdp_pricing pricing, fsdp_price_end end) {
  fsdp_step_price step;
  pricing.end = end;
  fsdp_simulation *simulation = fsdp_simulation_create(&pricing);
  fsdp_simulation_run(simulation, &step);
  fsdp_simulation_destroy(simulation);
  const double seconds = step.step_s;
  fsdp_step_price_release(&step);
  return seconds;
}

fsdp_status fsdp_price_report_create(const fsdp_plan *plan, const fsdp_device_profile *profile,
                                     int ranks_per_node, fsdp_price_report *report, fsdp_error *error) {
  fsdp_pricing pricing;
  *report = (fsdp_price_report){0};
  fsdp_status status = fsdp_pricing_create(plan, profile, ranks_per_node, &pricing, error);
  if (status) return status;
  *report = (fsdp_price_report){.plan = plan, .profile = profile, .ranks_per_node = ranks_per_node};
  fsdp_simulation *simulation = fsdp_simulation_create(&pricing);
  fsdp_simulation_run(simulation, &report->step);
  fsdp_simulation_destroy(simulation);
  if (profile->spread.compute_high > 0) {
    report->low_s = step_at(pricing, FSDP_PRICE_LOW);
    report->high_s = step_at(pricing, FSDP_PRICE_HIGH);
  }
  report->tokens_per_s = fsdp_plan_step_tokens(plan) / report->step.step_s;
  report->mfu_causal = fsdp_pricing_mfu(&pricing, report->step.step_s, FSDP_FLOPS_CAUSAL);
  report->mfu_all_pairs = fsdp_pricing_mfu(&pricing, report->step.step_s, FSDP_FLOPS_ALL_PAIRS);
  return FSDP_OK;
}

void fsdp_price_report_release(fsdp_price_report *report) {
  fsdp_step_price_release(&report->step);
}

// ---- The run

fsdp_run_price fsdp_run_price_of(int64_t steps, double step_tokens, double step_s, int ranks,
                                 double gpu_hour) {
  const double hours = (double)steps * step_s / 3600;
  return (fsdp_run_price){.steps = steps,
                          .tokens = (double)steps * step_tokens,
                          .hours = hours,
                          .gpu_hours = hours * ranks,
                          .cost = hours * ranks * gpu_hour};
}

// "25.2", "0.00612", from a thousand on "1,234".
static fsdp_number_text print_digits(double value, int digits) {
  enum { DECIMALS_MAX = 9 };
  fsdp_number_text out = fsdp_print_int((int64_t)(value + 0.5));
  if (value < 999.5) snprintf(out.text, sizeof out.text, "%.*g", digits, value);
  if (value > 0 && value < 1e-4) { // %g would print an exponent
    const int decimals = digits - 1 - (int)floor(log10(value));
    snprintf(out.text, sizeof out.text, "%.*f", decimals < DECIMALS_MAX ? decimals : DECIMALS_MAX, value);
  }
  return out;
}

// "246.00", "0.153".
static fsdp_number_text print_cost(double cost) {
  fsdp_number_text out = {"-"};
  if (cost > 0) out = print_digits(cost, 3);
  if (cost >= 0.995) snprintf(out.text, sizeof out.text, "%.2f", cost);
  return out;
}

fsdp_run_text fsdp_run_price_text(const fsdp_run_price *run) {
  return (fsdp_run_text){print_digits(run->hours, 3), print_digits(run->gpu_hours, 4), print_cost(run->cost)};
}

const char *fsdp_run_price_print(const fsdp_run_price *run, char out[FSDP_RUN_PRICE_BYTES]) {
  const fsdp_run_text text = fsdp_run_price_text(run);
  snprintf(out, FSDP_RUN_PRICE_BYTES, "%s step%s, %s tokens: %s hours, %s GPU hours%s%s",
           fsdp_print_int(run->steps).text, fsdp_plural(run->steps),
           fsdp_print_int((int64_t)run->tokens).text, text.hours.text, text.gpu_hours.text,
           run->cost > 0 ? ", cost " : "", run->cost > 0 ? text.cost.text : "");
  return out;
}

// ---- What bounds a step

// A part of the step's time. Parts add up to the step.
typedef struct part {
  const char *name, *key;
  double seconds;
} part;

enum { PARTS = 8 };

static void list_parts(const fsdp_price_report *r, part parts[PARTS]) {
  const fsdp_step_price *s = &r->step;
  const part all[PARTS] = {
      {"matrix products", "products", s->kind_s[FSDP_PRICE_PRODUCTS]},
      {"attention", "attention", s->kind_s[FSDP_PRICE_ATTENTION]},
      {"other ops, bound by memory", "moves", s->kind_s[FSDP_PRICE_MOVES]},
      {"the optimizer", "update", s->kind_s[FSDP_PRICE_UPDATE]},
      {"exposed communication", "communication", s->comm_s},
      {"exposed copies from the host", "copies_up", s->h2d_s},
      {"exposed copies to the host", "copies_down", s->d2h_s},
      {"launching and waiting", "other", s->other_s},
  };
  memcpy(parts, all, sizeof all);
}

static const part *greatest_part(const part parts[PARTS]) {
  const part *most = &parts[0];
  for (int i = 1; i < PARTS; i++)
    if (parts[i].seconds > most->seconds) most = &parts[i];
  return most;
}

// ---- Text

const char *fsdp_price_line(const fsdp_price_report *r, char *out, size_t out_bytes) {
  char mfu[32] = "";
  if (r->mfu_causal > 0) snprintf(mfu, sizeof mfu, " (%.0f%% MFU)", 100 * r->mfu_causal);
  snprintf(out, out_bytes, "%.*f ms a step%s, exposed communication %.0f%%", r->step.step_s < 0.1 ? 2 : 0,
           1e3 * r->step.step_s, mfu, 100 * r->step.comm_s / r->step.step_s);
  return out;
}

fsdp_number_text fsdp_price_print_ms(double seconds) {
  fsdp_number_text out;
  const int decimals = seconds >= 0.1 ? 1 : seconds >= 0.01 ? 2 : 3;
  if (seconds >= 10)
    snprintf(out.text, sizeof out.text, "%.2f s", seconds);
  else
    snprintf(out.text, sizeof out.text, "%.*f ms", decimals, 1e3 * seconds);
  return out;
}

static double percent(const fsdp_price_report *r, double seconds) {
  return 100 * seconds / r->step.step_s;
}

static void print_busy(const fsdp_price_report *r, FILE *out) {
  fprintf(out, "busy:      ");
  for (int s = 0, any = 0; s < FSDP_STREAM_COUNT; s++) {
    if (r->step.busy_s[s] < 5e-4 * r->step.step_s) continue;
    fprintf(out, "%s%s %.1f%%", any++ ? ", " : "", fsdp_stream_name((fsdp_stream)s),
            percent(r, r->step.busy_s[s]));
  }
  fputc('\n', out);
}

// Exposed seconds by sets of the configuration's axes: both halves of a factored axis are it.
typedef struct axes_seconds {
  double of[1 << FSDP_MESH_AXES_MAX];
} axes_seconds;

static axes_seconds exposed_by_axes(const fsdp_price_report *r) {
  axes_seconds sums = {{0}};
  for (int a = 1; a < 1 << FSDP_MESH_AXES_MAX; a++)
    sums.of[fsdp_factored_source(&r->plan->axes, (fsdp_axis_set)a)] += r->step.comm_axes_s[a];
  return sums;
}

static const char *unit_name(const fsdp_price_report *r, int unit) {
  if (unit < 0) return "(no unit)";
  const char *path = r->plan->units->units[unit].path;
  return *path ? path : "(root)";
}

// The units with the most exposed communication, then what the others have together.
static void print_exposed_units(const fsdp_price_report *r, FILE *out) {
  enum { SHOWN = 5 };
  double left = r->step.comm_s;
  int printed[SHOWN];
  for (int i = 0; i < SHOWN && left > 5e-4 * r->step.step_s; i++) {
    int most = -1;
    for (int u = 0; u <= r->step.unit_count; u++) {
      bool seen = false;
      for (int j = 0; j < i; j++) seen = seen || printed[j] == u;
      if (!seen && (most < 0 || r->step.comm_unit_s[u] > r->step.comm_unit_s[most])) most = u;
    }
    if (most < 0 || r->step.comm_unit_s[most] <= 0) break;
    printed[i] = most;
    left -= r->step.comm_unit_s[most];
    fprintf(out, "           %8.2f ms  %5.1f%%  %s\n", 1e3 * r->step.comm_unit_s[most],
            percent(r, r->step.comm_unit_s[most]), unit_name(r, most - 1));
  }
  if (left > 5e-4 * r->step.step_s)
    fprintf(out, "           %8.2f ms  %5.1f%%  other units\n", 1e3 * left, percent(r, left));
}

static void print_exposed(const fsdp_price_report *r, FILE *out) {
  fprintf(out, "exposed communication: %.2f ms, %.1f%% of the step\n", 1e3 * r->step.comm_s,
          percent(r, r->step.comm_s));
  const axes_seconds sums = exposed_by_axes(r);
  for (int a = 1; a < 1 << FSDP_MESH_AXES_MAX; a++) {
    char axes[FSDP_MESH_TEXT_BYTES];
    if (sums.of[a] > 0)
      fprintf(out, "           %8.2f ms  %5.1f%%  over %s\n", 1e3 * sums.of[a], percent(r, sums.of[a]),
              fsdp_mesh_print_axes(&r->plan->config.mesh, (fsdp_axis_set)a, axes));
  }
  print_exposed_units(r, out);
}

static void print_variations(const fsdp_price_report *r, FILE *out) {
  fsdp_variation variations[FSDP_VARIATIONS_MAX];
  const int count = fsdp_variations_of(r->plan, r->profile, r->ranks_per_node, variations);
  fprintf(out, "\nwith one setting changed%*s step ms   tokens/s   change  peak memory\n", 15, "");
  for (int i = 0; i < count; i++) {
    fprintf(out, "  %-36s %8.2f %10.0f  %+6.1f%%  %s%s\n", variations[i].change, 1e3 * variations[i].step_s,
            variations[i].tokens_per_s, 100 * (variations[i].tokens_per_s / r->tokens_per_s - 1),
            fsdp_print_bytes(variations[i].peak_bytes).text, variations[i].fits ? "" : ", does not fit");
  }
}

// The kernel whose rates price attention: the profile's choice, or the plan's.
static const char *attention_kernel(const fsdp_price_report *r, char out[FSDP_PROFILE_KERNEL_BYTES]) {
  const char *given = r->profile->attention_kernel;
  return *given ? given : fsdp_profile_kernel_name(fsdp_plan_attention(&r->plan->config), out);
}

static void print_estimated(const fsdp_price_report *r, FILE *out) {
  char kernel[FSDP_PROFILE_KERNEL_BYTES];
  const double attention_s = r->step.estimated_s[FSDP_PRICE_ATTENTION],
               products_s = r->step.estimated_s[FSDP_PRICE_PRODUCTS];
  if (attention_s > 0)
    fprintf(out, "estimated, not measured: attention by %s, %.2f ms, %.1f%% of the step\n",
            attention_kernel(r, kernel), 1e3 * attention_s, percent(r, attention_s));
  if (products_s > 0)
    fprintf(out, "estimated, not measured: products grouped by expert, %.2f ms, %.1f%% of the step\n",
            1e3 * products_s, percent(r, products_s));
}

static bool has_links(const fsdp_price_report *r) {
  return r->profile->device == FSDP_OP_CUDA && fsdp_mesh_ranks(&r->plan->config.mesh) > 1;
}

static const char *why_no_copies(const fsdp_price_report *r) {
  return fsdp_pricing_why_no_copies(r->plan, r->profile, r->ranks_per_node);
}

// What --nccl-register and --nccl-ctas come to on this machine.
static void print_links(const fsdp_price_report *r, FILE *out) {
  if (!has_links(r)) return;
  const char *why = why_no_copies(r);
  const double slowed = 100 * (r->profile->product_slowdown - 1);
  if (why)
    fprintf(out, "links:     gathers by kernels (%s): compute slows by %.1f%% beside collectives\n", why,
            slowed);
  else
    fprintf(out,
            "links:     gathers by copy engines, as NCCL 2.28 and later make them: compute slows by %.1f%% "
            "beside them, by %.1f%% beside other collectives\n",
            100 * (r->profile->gather_slowdown - 1), slowed);
}

static void print_sharing(const fsdp_price_report *r, FILE *out) {
  const int cores = r->profile->processors, ranks = fsdp_mesh_ranks(&r->plan->config.mesh);
  const int local = ranks < r->ranks_per_node ? ranks : r->ranks_per_node;
  if (r->profile->device != FSDP_OP_CPU || local <= cores) return;
  fprintf(out, "note:      %d ranks share %d core%s: this is less certain than where each has its own\n",
          local, cores, fsdp_plural(cores));
}

void fsdp_price_print(const fsdp_price_report *r, FILE *out) {
  part parts[PARTS];
  list_parts(r, parts);
  const double unit = r->step.step_s >= 10 ? 1 : 1e3; // of which there is one in a line
  const char *name = unit > 1 ? "ms" : "s";
  fprintf(out, "price on %s: %.2f %s a step, %.0f tokens/s", r->profile->name, unit * r->step.step_s, name,
          r->tokens_per_s);
  if (r->mfu_causal > 0)
    fprintf(out, ", MFU %.1f%% (%.1f%% with attention over all pairs)", 100 * r->mfu_causal,
            100 * r->mfu_all_pairs);
  fputc('\n', out);
  if (r->high_s > 0)
    fprintf(out, "range:     %.2f to %.2f %s a step, by the spread of what the profile measured\n",
            unit * r->low_s, unit * r->high_s, name);
  char run[FSDP_RUN_PRICE_BYTES];
  if (r->run.steps) fprintf(out, "run:       %s\n", fsdp_run_price_print(&r->run, run));
  print_sharing(r, out);
  for (int i = 0; i < PARTS; i++) {
    if (parts[i].seconds <= 0) continue;
    fprintf(out, "           %8.2f ms  %5.1f%%  %s\n", 1e3 * parts[i].seconds, percent(r, parts[i].seconds),
            parts[i].name);
  }
  print_estimated(r, out);
  print_links(r, out);
  fprintf(out, "bound by:  %s\n", greatest_part(parts)->name);
  print_busy(r, out);
  print_exposed(r, out);
  print_variations(r, out);
}

// ---- JSON

static void put(json_t *object, const char *key, json_t *value) {
  FSDP_CHECK(json_object_set_new(object, key, value) == 0, "JSON key %s", key);
}

void fsdp_run_price_json(const fsdp_run_price *run, json_t *object) {
  if (!run->steps) return;
  put(object, "steps", json_integer(run->steps));
  put(object, "tokens", json_real(run->tokens));
  put(object, "hours", json_real(run->hours));
  put(object, "gpu_hours", json_real(run->gpu_hours));
  put(object, "cost", run->cost > 0 ? json_real(run->cost) : json_null());
}

static json_t *ms(double seconds) {
  return json_real(1e3 * seconds);
}

static json_t *exposed_json(const fsdp_price_report *r) {
  json_t *exposed = json_object(), *by_axis = json_object(), *by_unit = json_object();
  put(exposed, "communication_ms", ms(r->step.comm_s));
  put(exposed, "copies_up_ms", ms(r->step.h2d_s));
  put(exposed, "copies_down_ms", ms(r->step.d2h_s));
  const axes_seconds sums = exposed_by_axes(r);
  for (int a = 1; a < 1 << FSDP_MESH_AXES_MAX; a++) {
    char axes[FSDP_MESH_TEXT_BYTES];
    if (sums.of[a] <= 0) continue;
    put(by_axis, fsdp_mesh_print_axes(&r->plan->config.mesh, (fsdp_axis_set)a, axes), ms(sums.of[a]));
  }
  for (int u = 0; u <= r->step.unit_count; u++)
    if (r->step.comm_unit_s[u] > 0) put(by_unit, unit_name(r, u - 1), ms(r->step.comm_unit_s[u]));
  put(exposed, "by_axis", by_axis);
  put(exposed, "by_unit", by_unit);
  return exposed;
}

static json_t *variations_json(const fsdp_price_report *r) {
  fsdp_variation variations[FSDP_VARIATIONS_MAX];
  const int count = fsdp_variations_of(r->plan, r->profile, r->ranks_per_node, variations);
  json_t *list = json_array();
  for (int i = 0; i < count; i++) {
    json_t *entry = json_object();
    put(entry, "change", json_string(variations[i].change));
    put(entry, "step_ms", ms(variations[i].step_s));
    put(entry, "tokens_per_s", json_real(variations[i].tokens_per_s));
    put(entry, "peak_bytes", json_integer(variations[i].peak_bytes));
    put(entry, "host_peak_bytes", json_integer(variations[i].host_peak_bytes));
    put(entry, "fits", json_boolean(variations[i].fits));
    FSDP_CHECK(json_array_append_new(list, entry) == 0, "JSON variation %d", i);
  }
  return list;
}

json_t *fsdp_price_json(const fsdp_price_report *r) {
  part parts[PARTS];
  list_parts(r, parts);
  json_t *time = json_object(), *busy = json_object(), *work = json_object();
  put(time, "profile", json_string(r->profile->name));
  put(time, "step_ms", ms(r->step.step_s));
  put(time, "step_low_ms", r->high_s > 0 ? ms(r->low_s) : json_null());
  put(time, "step_high_ms", r->high_s > 0 ? ms(r->high_s) : json_null());
  put(time, "tokens_per_s", json_real(r->tokens_per_s));
  put(time, "mfu", r->mfu_causal > 0 ? json_real(r->mfu_causal) : json_null());
  put(time, "mfu_all_pairs", r->mfu_causal > 0 ? json_real(r->mfu_all_pairs) : json_null());
  put(time, "flops", json_real(r->step.flops));
  fsdp_run_price_json(&r->run, time);
  for (int s = 0; s < FSDP_STREAM_COUNT; s++)
    if (r->step.busy_s[s] > 0) put(busy, fsdp_stream_name((fsdp_stream)s), ms(r->step.busy_s[s]));
  for (int i = 0; i < PARTS; i++) put(work, parts[i].key, ms(parts[i].seconds));
  put(time, "busy_ms", busy);
  put(time, "parts_ms", work);
  char kernel[FSDP_PROFILE_KERNEL_BYTES];
  put(time, "attention_kernel", json_string(attention_kernel(r, kernel)));
  put(time, "estimated_ms",
      ms(r->step.estimated_s[FSDP_PRICE_ATTENTION] + r->step.estimated_s[FSDP_PRICE_PRODUCTS]));
  put(time, "gathers", has_links(r) ? json_string(why_no_copies(r) ? "kernels" : "copies") : json_null());
  put(time, "bound_by", json_string(greatest_part(parts)->key));
  put(time, "exposed", exposed_json(r));
  put(time, "variations", variations_json(r));
  return time;
}
