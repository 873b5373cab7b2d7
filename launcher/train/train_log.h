// The record of a run: the log (JSON lines) and TensorBoard's event file, of rank 0.
//
// Neither ends a run that is under way. A write that fails (a full disk) is warned of once for each file; the
// log's lines are kept and follow once there is room, the event file goes without those steps.
#pragma once

#include "launcher/report/event_file.h"
#include "launcher/report/metrics_log.h"
#include "launcher/report/progress.h"

typedef struct fsdp_train_log {
  fsdp_metrics_log *log;   // or NULL
  fsdp_event_file *events; // or NULL
  bool warned_of_log, warned_of_events;
} fsdp_train_log;

// Writes what is known of a step. On ranks other than 0, without files, nothing happens.
void fsdp_train_log_write(fsdp_train_log *self, const fsdp_step_record *record, const fsdp_plan *plan);

// Closes both; warns of lines that never reached the log.
void fsdp_train_log_close(fsdp_train_log *self);
