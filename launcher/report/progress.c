#include "launcher/report/progress.h"

#include "launcher/report/metrics_log.h"
#include "runtime/base/check.h"
#include "runtime/base/text.h"

#include <inttypes.h>
#include <math.h>
#include <time.h>

fsdp_number_text fsdp_progress_duration(double seconds) {
  fsdp_number_text out;
  int64_t s = seconds < 0 || !isfinite(seconds) ? 0 : (int64_t)fmin(seconds + 0.5, 1e12);
  if (s >= 3600)
    snprintf(out.text, sizeof out.text, "%" PRId64 "h%02" PRId64 "m", s / 3600, s % 3600 / 60);
  else if (s >= 60)
    snprintf(out.text, sizeof out.text, "%" PRId64 "m%02" PRId64 "s", s / 60, s % 60);
  else
    snprintf(out.text, sizeof out.text, "%" PRId64 "s", s);
  return out;
}

// NaN if the peak is not known.
static double mfu_of(const fsdp_step_record *record, const fsdp_plan *plan, double tokens_per_s,
                     fsdp_flops_convention convention) {
  if (record->peak_flops <= 0) return NAN;
  double flops = fsdp_model_flops_per_token(&plan->config.model, plan->config.seq, convention);
  return flops * tokens_per_s / record->peak_flops;
}

static void put(json_t *object, const char *key, json_t *value) {
  FSDP_CHECK(value && json_object_set_new(object, key, value) == 0, "JSON member %s", key);
}
static void put_number(json_t *object, const char *key, double value) {
  put(object, key, fsdp_metrics_number(value));
}

static void put_memory(json_t *line, const fsdp_step_record *record, const fsdp_plan *plan) {
  const fsdp_memory_space_report *device = &plan->memory.space[FSDP_SPACE_DEVICE];
  const fsdp_measurement *memory = &record->stats.memory;
  int64_t valley = memory->valley_bytes[FSDP_SPACE_DEVICE], peak = memory->peak_bytes[FSDP_SPACE_DEVICE];
  // The arena is reserved as a whole from the first step on; of it, what is live counts as allocated.
  double reserved = (double)device->arena_bytes / 1e9;
  put_number(line, "curr_alloc_gb", record->measured ? (double)valley / 1e9 : NAN);
  put_number(line, "peak_alloc_gb", record->measured ? (double)peak / 1e9 : NAN);
  put_number(line, "curr_resv_gb", reserved);
  put_number(line, "peak_resv_gb", reserved);
  put(line, "valley_bytes", record->measured ? json_integer(valley) : json_null());
  put(line, "peak_bytes", record->measured ? json_integer(peak) : json_null());
  put(line, "planned_valley_bytes", json_integer(device->valley_bytes));
  put(line, "planned_peak_bytes", json_integer(device->peak_bytes));
  put(line, "arena_bytes", json_integer(device->arena_bytes));
  put(line, "device_used_bytes",
      record->device_used_bytes > 0 ? json_integer(record->device_used_bytes) : json_null());
  put(line, "host_bytes", json_integer(plan->memory.space[FSDP_SPACE_HOST].arena_bytes));
  const fsdp_memory_space_report *host = &plan->memory.space[FSDP_SPACE_HOST];
  put(line, "host_valley_bytes",
      record->measured ? json_integer(memory->valley_bytes[FSDP_SPACE_HOST]) : json_null());
  put(line, "host_peak_bytes",
      record->measured ? json_integer(memory->peak_bytes[FSDP_SPACE_HOST]) : json_null());
  put(line, "planned_host_valley_bytes", json_integer(host->valley_bytes));
  put(line, "planned_host_peak_bytes", json_integer(host->peak_bytes));
}

// When it is, in UTC: "2026-11-24T02:31:15.042Z".
static const char *print_timestamp(char out[32]) {
  struct timespec now;
  struct tm parts;
  clock_gettime(CLOCK_REALTIME, &now);
  gmtime_r(&now.tv_sec, &parts);
  size_t used = strftime(out, 32, "%Y-%m-%dT%H:%M:%S", &parts);
  snprintf(out + used, 32 - used, ".%03dZ", (int)(now.tv_nsec / 1000000));
  return out;
}

// The greatest load of a layer, and which layer of those with experts that is.
static float greatest_load(const fsdp_step_record *record, int64_t *layer) {
  *layer = 0;
  for (int64_t i = 1; i < record->load_count; i++)
    if (record->loads[i] > record->loads[*layer]) *layer = i;
  return record->load_count ? record->loads[*layer] : 0;
}

static void put_routing(json_t *line, const fsdp_step_record *record) {
  if (!record->load_count) return;
  json_t *loads = json_array();
  for (int64_t i = 0; i < record->load_count; i++)
    json_array_append_new(loads, json_real((double)record->loads[i]));
  if (!isnan(record->aux_loss)) put_number(line, "moe/aux_loss", record->aux_loss);
  if (!isnan(record->z_loss)) put_number(line, "moe/z_loss", record->z_loss);
  put(line, "moe/load_max", loads);
  put_number(line, "moe/imbalance", record->imbalance);
  if (!record->overflow) return;
  json_t *rows = json_array(), *waves = json_array();
  for (int64_t i = 0; i < record->load_count; i++) {
    json_array_append_new(rows, json_integer((json_int_t)record->overflow[2 * i]));
    json_array_append_new(waves, json_integer((json_int_t)record->overflow[2 * i + 1]));
  }
  put(line, "moe/overflow_rows", rows);
  put(line, "moe/waves", waves);
}

json_t *fsdp_progress_json(const fsdp_step_record *record, const fsdp_plan *plan) {
  const fsdp_step_sums *sums = &record->stats.sums;
  double tokens_per_s = (double)record->tokens / (record->total_ms / 1e3);
  json_t *line = json_object();
  char time[32];
  put(line, "global_step", json_integer(record->step));
  put(line, "timestamp", json_string(print_timestamp(time)));
  put_number(line, "loss", record->loss);
  if (plan->config.loss_of_documents) put(line, "loss_mean", json_string("documents"));
  put_number(line, "running_loss", record->running_loss);
  put_number(line, "lr", record->lr);
  put_number(line, "grad_norm", record->grad_norm);
  put_routing(line, record);
  put(line, "skipped", json_boolean(record->skipped));
  put(line, "updates", json_integer(record->updates));
  put(line, "epoch", json_integer(record->epoch));
  put_number(line, "epoch_progress", (double)record->epoch_step / (double)record->steps_per_epoch);
  put(line, "num_batches_remaining", json_integer(record->steps_per_epoch - record->epoch_step));
  put_number(line, "tokens_per_s", tokens_per_s);
  put(line, "real_tokens", json_integer(record->real_tokens));
  put(line, "learned_tokens", json_integer(record->learned_tokens));
  put_number(line, "real_tokens_per_s", (double)record->real_tokens / (record->total_ms / 1e3));
  put_number(line, "learned_tokens_per_s", (double)record->learned_tokens / (record->total_ms / 1e3));
  put_number(line, "mfu", mfu_of(record, plan, tokens_per_s, FSDP_FLOPS_CAUSAL));
  put_number(line, "mfu_all_pairs", mfu_of(record, plan, tokens_per_s, FSDP_FLOPS_ALL_PAIRS));
  put_number(line, "time/total", record->total_ms);
  put_number(line, "time/data", record->data_ms);
  put_number(line, "time/checkpoint", record->checkpoint_ms);
  put_number(line, "time/forward", sums->phase_ms[FSDP_PHASE_FORWARD]);
  put_number(line, "time/backward", sums->phase_ms[FSDP_PHASE_BACKWARD]);
  put_number(line, "time/update", sums->phase_ms[FSDP_PHASE_UPDATE]);
  put_number(line, "time/exposed_comm", record->stats.exposure.comm_s * 1e3);
  if (record->checked) put_number(line, "time/check_replicas", record->check_ms);
  put_memory(line, record, plan);
  if (record->start_eval_loss > 0) put_number(line, "eval_loss_at_start", record->start_eval_loss);
  if (!record->evaluated) return line;
  put_number(line, "eval_loss", record->eval_loss);
  put_number(line, "eval_perplexity", fsdp_progress_perplexity(record->eval_loss));
  put_number(line, "time/evaluation", record->eval_ms);
  return line;
}

double fsdp_progress_perplexity(double loss) {
  return exp(loss);
}

void fsdp_progress_print_evaluation(const fsdp_step_record *record, FILE *out) {
  fprintf(out, "evaluation after step %" PRId64 ":  loss %.4f  perplexity %.2f  in %s%s\n", record->step,
          record->eval_loss, fsdp_progress_perplexity(record->eval_loss),
          fsdp_progress_duration(record->eval_ms / 1e3).text, record->best ? "  (best so far)" : "");
  fflush(out);
}

void fsdp_progress_add(fsdp_progress_tally *tally, const fsdp_step_record *record) {
  if (isfinite(record->loss)) tally->loss += record->loss, tally->losses++;
  tally->ms += record->total_ms;
  tally->steps++;
  tally->tokens += record->tokens;
  tally->real += record->real_tokens;
  tally->learned += record->learned_tokens;
}

static double tokens_per_s(const fsdp_progress_tally *tally) {
  return (double)tally->tokens / (tally->ms / 1e3);
}

const char *fsdp_progress_speed(const fsdp_progress_tally *tally, char out[FSDP_PROGRESS_SPEED_BYTES]) {
  const double speed = tokens_per_s(tally), tokens = (double)tally->tokens;
  const double real = (double)tally->real / tokens, learned = (double)tally->learned / tokens;
  int used = snprintf(out, FSDP_PROGRESS_SPEED_BYTES, "%s tokens/s", fsdp_print_int((int64_t)speed).text);
  if (learned <= 0.99)
    snprintf(out + used, FSDP_PROGRESS_SPEED_BYTES - (size_t)used, " (%s real, %s learned)",
             fsdp_print_int((int64_t)(real * speed)).text, fsdp_print_int((int64_t)(learned * speed)).text);
  return out;
}

void fsdp_progress_print(const fsdp_step_record *record, const fsdp_plan *plan,
                         const fsdp_progress_tally *line, FILE *out) {
  char speed[FSDP_PROGRESS_SPEED_BYTES];
  const double epoch =
      (double)record->epoch + (double)record->epoch_step / fmax(1, (double)record->steps_per_epoch);
  int width = snprintf(NULL, 0, "%" PRId64, record->total_steps);
  fprintf(out,
          "step %*" PRId64 "/%" PRId64 " %5.1f%%  epoch %.2f  loss %.4f  lr %.2e  norm %.3f  %s  left %s",
          width, record->step, record->total_steps, 100 * (double)record->step / (double)record->total_steps,
          epoch, record->loss, record->lr, fabs(record->grad_norm), fsdp_progress_speed(line, speed),
          fsdp_progress_duration((double)(record->total_steps - record->step) *
                                 (line->ms / (double)line->steps) / 1e3)
              .text);
  int64_t layer;
  const float load = greatest_load(record, &layer);
  if (load > 2)
    fprintf(out, "  load %.2f (%" PRId64 " of %" PRId64 " routers)", (double)load, layer + 1,
            record->load_count);
  double overflow = 0;
  for (int64_t i = 0; i < record->load_count && record->overflow; i++) overflow += record->overflow[2 * i];
  if (overflow > 0) fprintf(out, "  %.0f rows beyond --expert-capacity", overflow);
  if (record->skipped) fprintf(out, "  skipped");
  if (record->peak_flops > 0) {
    fprintf(out, "  MFU %.1f%% (all pairs: %.1f%%)",
            100 * mfu_of(record, plan, tokens_per_s(line), FSDP_FLOPS_CAUSAL),
            100 * mfu_of(record, plan, tokens_per_s(line), FSDP_FLOPS_ALL_PAIRS));
  }
  fputc('\n', out);
  fflush(out);
}
