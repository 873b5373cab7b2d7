// --trace: the timelines of all ranks, on rank 0's clock, as one file.
#pragma once

#include "launcher/train/trainer.h"

// Whether the run has the steps that are to be traced. FSDP_ERR_OPTION, on every rank alike.
fsdp_status fsdp_train_trace_check(fsdp_trainer *t, fsdp_error *error);

// Writes the file if the last traced step is recorded and nothing was written yet. Every rank must call it,
// after the same step. Returns how long it took. What cannot be written is a warning: the training goes on.
int64_t fsdp_train_trace_write(fsdp_trainer *t);
