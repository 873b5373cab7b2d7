// What a person and a program see of a step: a line on the terminal, an object in the log.
#pragma once

#include "runtime/base/text.h"
#include "runtime/exec/executor.h"
#include "runtime/plan/plan.h"

#include <jansson.h>
#include <stdio.h>

typedef struct fsdp_step_record {
  int64_t step, total_steps;           // from 1
  int64_t epoch;                       // from 0
  int64_t epoch_step, steps_per_epoch; // steps of this epoch that are done, this one too
  double loss, running_loss, lr, grad_norm;
  bool skipped; // its update was left out
  // Of models with routed experts: the losses beside the cross-entropy, that of the load before its
  // coefficient, NAN: there is none; and of each layer with experts the rows of the fullest one over their
  // mean.
  double aux_loss, z_loss;
  const float *loads;
  int64_t load_count;
  // Rows of the rank whose experts get most, over the mean, in the mean over layers: what `--imbalance` of a
  // price takes. 1: every rank has all experts.
  double imbalance;
  // Where ranks divide experts and have room for a part of what these can be sent: of each of these layers
  // the rows beyond, and the waves that had some, of all ranks and micro-batches. NULL: all have room.
  const float *overflow; // (load_count, 2)
  int64_t updates;       // made so far, of earlier runs too
  double total_ms, data_ms;
  bool checked;           // replicas were compared after it:
  double check_ms;        // how long that took
  double checkpoint_ms;   // that the step waited for a checkpoint to be taken
  int64_t tokens;         // of the step, all ranks together, of which
  int64_t real_tokens;    // are no padding, and
  int64_t learned_tokens; // so many are targets that the loss counts
  fsdp_step_stats stats;
  bool evaluated;            // after this step:
  bool best;                 // its loss is the least so far
  double start_eval_loss;    // of the evaluation before the run's first step, in its record; 0: none
  double eval_loss, eval_ms; // the mean over the evaluation's targets, and how long it took
  bool measured;             // stats.memory holds what the trace found
  double peak_flops;         // of all devices together, by their data sheet; 0: not known, and MFU neither
  int64_t device_used_bytes; // as the GPU's driver counts, everybody there together; 0: there is no driver
} fsdp_step_record;

// exp(loss), what `eval_perplexity` is.
double fsdp_progress_perplexity(double loss);

// What several steps have added up to.
typedef struct fsdp_progress_tally {
  double loss, ms;
  int64_t steps, losses;         // of which those with a loss that is finite
  int64_t tokens, real, learned; // as a record's
} fsdp_progress_tally;
void fsdp_progress_add(fsdp_progress_tally *tally, const fsdp_step_record *record);

// The JSON line of a step. A new reference.
json_t *fsdp_progress_json(const fsdp_step_record *record, const fsdp_plan *plan);

// The terminal's line of a step, with rates over `line`, the steps since the last one.
void fsdp_progress_print(const fsdp_step_record *record, const fsdp_plan *plan,
                         const fsdp_progress_tally *line, FILE *out);

// The terminal's line of the evaluation after a step, or before the step behind it.
void fsdp_progress_print_evaluation(const fsdp_step_record *record, FILE *out);

// "1,234 tokens/s", with real and learned ones behind it where they are 1% fewer. Returns `out`.
#define FSDP_PROGRESS_SPEED_BYTES 128
const char *fsdp_progress_speed(const fsdp_progress_tally *tally, char out[FSDP_PROGRESS_SPEED_BYTES]);

// "1h02m", "3m20s", "12s".
fsdp_number_text fsdp_progress_duration(double seconds);
