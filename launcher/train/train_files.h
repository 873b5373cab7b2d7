// Files of a training run besides data and weights: the log, and the options that it was started with.
#pragma once

#include "launcher/options/options.h"
#include "launcher/report/metrics_log.h"

#define FSDP_TRAIN_PATH_BYTES 4096
#define FSDP_TRAIN_LOG_STEP   "global_step" // the member of each line of the log that is its step

// The path of the log that --log names, or of that in the experiment's folder; "" if there is neither.
void fsdp_train_log_path(const fsdp_options *options, char path[FSDP_TRAIN_PATH_BYTES]);

// Opens it; *log is NULL if there is none. FSDP_ERR_INPUT, also if --log names a file that is no log.
fsdp_status fsdp_train_open_log(const fsdp_options *options, fsdp_metrics_log **log, fsdp_error *error);

// Writes run.yaml, the options that the run was started with, into its experiment's folder. With `from`, the
// checkpoint that --resume names ("auto": the newest), --resume and --resume-schedule too: the next start
// with -e alone begins as this one did. NULL: without. FSDP_ERR_INPUT.
fsdp_status fsdp_train_write_options(const fsdp_options *options, int ranks, const char *from,
                                     fsdp_error *error);
