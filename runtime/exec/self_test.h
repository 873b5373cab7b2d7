// The self-test of a plan: its narrow twin (runtime/plan/narrow.h) trains on threads of this process, and the
// same model with the same data on one rank alone, where nothing is cut, moved or summed. Losses, gradient
// norms and the gradient of every parameter must agree, step by step, and the loss of an evaluation. The
// verifier proves that no instruction runs too early; that their sum is right, only numbers show.
#pragma once

#include "runtime/exec/trial.h"

// fp32 sums in another order: a sum of n terms is off by about sqrt(n) roundings of 6e-8, n a few thousands
// here, and up to three layers of them follow each other. What is summed twice or left out is off by more
// than 1e-2.
#define FSDP_SELF_TEST_TOLERANCE 1e-5

typedef struct fsdp_self_test_report {
  fsdp_mesh mesh; // of the twin
  int ranks, steps, layers, micro_batches;
  int parameters; // whose gradients were compared, in every step
  int idle;       // of these, such that have no gradient in any step: what rounding leaves of zero
  double largest; // difference of anything compared, relative to what it is compared with
  char where[2 * FSDP_NAME_BYTES]; // the largest one
  int unlike; // the first layer of the plan that the twin's has other ops or redistributions than; -1: none
} fsdp_self_test_report;

// FSDP_ERR_OPTION, with the first tensor that differs, in the order of the backward, or if the twin cannot be
// planned, or has a router's loss of parts of sequences (--aux-loss rank). Runs on the CPU, in memory of its
// own, which it gives back.
fsdp_status fsdp_self_test(const fsdp_plan *plan, fsdp_self_test_report *report, fsdp_error *error);

// Compares two trials of one model that keep the gradients of all steps; fills in the last four fields of
// *report. `message` names what differs; false: something does.
bool fsdp_self_test_compare(const fsdp_trial *trial, const fsdp_trial *alone, const fsdp_graph *graph,
                            fsdp_self_test_report *report, char *message, size_t message_bytes);

// "2 steps of 3 micro-batches on 4 ranks (data=1,fsdp=2,tensor=2) agree with one rank: ...". Returns `out`.
#define FSDP_SELF_TEST_TEXT 512
const char *fsdp_self_test_print(const fsdp_self_test_report *report, char out[FSDP_SELF_TEST_TEXT]);
