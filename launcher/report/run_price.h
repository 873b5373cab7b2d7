// What a whole run is expected to take: hours, hours of all its GPUs, money.
#pragma once

#include <jansson.h>
#include <stdint.h>

typedef struct fsdp_run_price {
  int64_t steps;          // 0: the run's length is not given
  double tokens;          // of all steps
  double hours;           // of the steps alone: evaluations, checkpoints and the start come on top
  double gpu_hours, cost; // hours of all ranks; 0: no price of one was given
} fsdp_run_price;

// `gpu_hour`: what an hour of one rank costs; 0: not given.
fsdp_run_price fsdp_run_price_of(int64_t steps, double step_tokens, double step_s, int ranks,
                                 double gpu_hour);

// "1,000 steps, 131,072,000 tokens: 12.3 hours, 98.4 GPU hours, cost 246.00". Returns `out`.
#define FSDP_RUN_PRICE_BYTES 192
const char *fsdp_run_price_print(const fsdp_run_price *run, char out[FSDP_RUN_PRICE_BYTES]);

// Adds steps, tokens, hours, gpu_hours and cost (null if unknown) to an object; nothing of a run of no steps.
void fsdp_run_price_json(const fsdp_run_price *run, json_t *object);
