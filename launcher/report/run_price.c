#include "launcher/report/run_price.h"

#include "runtime/base/check.h"
#include "runtime/base/plural.h"
#include "runtime/base/text.h"

#include <stdio.h>

fsdp_run_price fsdp_run_price_of(int64_t steps, double step_tokens, double step_s, int ranks,
                                 double gpu_hour) {
  const double hours = (double)steps * step_s / 3600;
  return (fsdp_run_price){.steps = steps,
                          .tokens = (double)steps * step_tokens,
                          .hours = hours,
                          .gpu_hours = hours * ranks,
                          .cost = hours * ranks * gpu_hour};
}

// "25.2", from a thousand on "1,234".
static const char *print_hours(double hours, int digits, char out[48]) {
  if (hours >= 999.5) return fsdp_print_int((int64_t)(hours + 0.5), out, 48);
  snprintf(out, 48, "%.*g", digits, hours);
  return out;
}

const char *fsdp_run_price_print(const fsdp_run_price *run, char out[FSDP_RUN_PRICE_BYTES]) {
  char steps[48], tokens[48], hours[48], gpu_hours[48];
  int used = snprintf(out, FSDP_RUN_PRICE_BYTES, "%s step%s, %s tokens: %s hours, %s GPU hours",
                      fsdp_print_int(run->steps, steps, sizeof steps), fsdp_plural(run->steps),
                      fsdp_print_int((int64_t)run->tokens, tokens, sizeof tokens),
                      print_hours(run->hours, 3, hours), print_hours(run->gpu_hours, 4, gpu_hours));
  if (run->cost > 0) snprintf(out + used, (size_t)(FSDP_RUN_PRICE_BYTES - used), ", cost %.2f", run->cost);
  return out;
}

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
