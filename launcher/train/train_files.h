// Files of a training run besides data and weights, of rank 0: its record, which is the log (JSON lines) and
// TensorBoard's event file, and the options that it was started with.
//
// A record does not end a run that is under way. A write that fails (a full disk) is warned of once for each
// file; the log's lines are kept and follow once there is room, the event file goes without those steps.
#pragma once

#include "launcher/options/options.h"
#include "launcher/report/event_file.h"
#include "launcher/report/metrics_log.h"
#include "launcher/report/progress.h"

#define FSDP_TRAIN_PATH_BYTES 4096
#define FSDP_TRAIN_LOG_STEP   "global_step" // the member of each line of the log that is its step

// The path of the log that --log names, or of that in the experiment's folder; "" if there is neither.
void fsdp_train_log_path(const fsdp_options *options, char path[FSDP_TRAIN_PATH_BYTES]);

typedef struct fsdp_train_log {
  fsdp_metrics_log *log;   // or NULL
  fsdp_event_file *events; // or NULL
  bool warned_of_log, warned_of_events;
} fsdp_train_log;

// Opens what was asked for, in a record of zeros. FSDP_ERR_INPUT, also if --log names a file that is no log.
// Close it in either case, which warns of lines that never reached the log.
fsdp_status fsdp_train_log_open(const fsdp_options *options, fsdp_train_log *self, fsdp_error *error);
void fsdp_train_log_close(fsdp_train_log *self);

// Writes what is known of a step. Without files nothing happens.
void fsdp_train_log_write(fsdp_train_log *self, const fsdp_step_record *record, const fsdp_plan *plan);

// Writes run.yaml, the options that the run was started with, into its experiment's folder. With `from`, the
// checkpoint that --resume names ("auto": the newest), --resume and --resume-schedule too: the next start
// with -e alone begins as this one did. NULL: without. FSDP_ERR_INPUT.
fsdp_status fsdp_train_write_options(const fsdp_options *options, int ranks, const char *from,
                                     fsdp_error *error);
