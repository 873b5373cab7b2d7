// What a step is expected to take, and a whole run, for a person and for a program.
#pragma once

#include "runtime/base/text.h"
#include "runtime/plan/price/simulate.h"

#include <jansson.h>
#include <stdio.h>

// Of a whole run: hours, hours of all its GPUs, money.
typedef struct fsdp_run_price {
  int64_t steps;          // 0: the run's length is not given
  double tokens;          // of all steps
  double hours;           // of the steps alone: evaluations, checkpoints and the start come on top
  double gpu_hours, cost; // hours of all ranks; 0: no price of one was given
} fsdp_run_price;

typedef struct fsdp_price_report {
  const fsdp_plan *plan;
  const fsdp_device_profile *profile;
  int ranks_per_node;
  fsdp_step_price step;
  double low_s, high_s;             // a step at the ends of the profile's spread; 0: it says none
  double tokens_per_s;              // of all ranks
  double mfu_causal, mfu_all_pairs; // 0: the profile has no peak
  fsdp_run_price run;               // all zeros unless the caller sets it
} fsdp_price_report;

// Prices one step. Plan and profile must outlive the report, which the caller releases. FSDP_ERR_INPUT and
// FSDP_ERR_OPTION as fsdp_pricing_create.
fsdp_status fsdp_price_report_create(const fsdp_plan *plan, const fsdp_device_profile *profile,
                                     int ranks_per_node, fsdp_price_report *report, fsdp_error *error);
void fsdp_price_report_release(fsdp_price_report *report); // one that is all zeros is allowed

// As a page of text, with how the price changes for one more and one less of each setting.
void fsdp_price_print(const fsdp_price_report *report, FILE *out);

// The object `time` of fsdp_plan --json: profile, step_ms, step_low_ms and step_high_ms (of the profile's
// spread, or null), tokens_per_s, mfu, mfu_all_pairs, flops, busy_ms
// by stream, parts_ms by what the step's time goes to, gathers (copies, kernels, or null), bound_by, exposed
// communication (by_axis, by_unit) and copies, variations. A new reference.
json_t *fsdp_price_json(const fsdp_price_report *report);

// "512 ms a step (61% MFU), exposed communication 3%". Returns `out`.
const char *fsdp_price_line(const fsdp_price_report *report, char *out, size_t out_bytes);

// "2448.7 ms", "0.486 ms", from ten seconds on "93.71 s": at least three figures from a microsecond on.
fsdp_number_text fsdp_price_print_ms(double seconds);

// `gpu_hour`: what an hour of one rank costs; 0: not given.
fsdp_run_price fsdp_run_price_of(int64_t steps, double step_tokens, double step_s, int ranks,
                                 double gpu_hour);

// Its numbers with enough digits that they multiply as shown: "0.0612" GPU hours at 2.5 cost "0.153". Of a
// run of unknown cost that is "-".
typedef struct fsdp_run_text {
  fsdp_number_text hours, gpu_hours, cost;
} fsdp_run_text;
fsdp_run_text fsdp_run_price_text(const fsdp_run_price *run);

// "1,000 steps, 131,072,000 tokens: 12.3 hours, 98.4 GPU hours, cost 246.00". Returns `out`.
#define FSDP_RUN_PRICE_BYTES 320
const char *fsdp_run_price_print(const fsdp_run_price *run, char out[FSDP_RUN_PRICE_BYTES]);

// Adds steps, tokens, hours, gpu_hours and cost (null if unknown) to an object; nothing of a run of no steps.
void fsdp_run_price_json(const fsdp_run_price *run, json_t *object);
