// --trace: the timelines of all ranks, on rank 0's clock, as one file.
#pragma once

#include "launcher/train/trainer.h"

// The steps of the executor that are recorded for it.
fsdp_traced_steps fsdp_train_traced_steps(const fsdp_options *options);

// Whether the file can be written, before anything is trained. Called on rank 0 alone. FSDP_ERR_INPUT.
fsdp_status fsdp_train_trace_try(const fsdp_options *options, fsdp_error *error);

// Whether the run has the steps that are to be traced. FSDP_ERR_OPTION, on every rank alike.
fsdp_status fsdp_train_trace_check(fsdp_trainer *t, fsdp_error *error);

// Writes the file if the last traced step is recorded and nothing was written yet. Every rank must call it,
// after the same step. Returns how long it took. What cannot be written is a warning: the training goes on.
int64_t fsdp_train_trace_write(fsdp_trainer *t);
