// A log of JSON objects, one per line ("JSON lines"), that another program may read while it grows.
//
// Lines are written whole, in append mode, so a reader sees complete lines only, whatever happens to the
// writer. A last line that a crash of the machine left unfinished is cut off when the log is opened again.
// Lines that the disk had no room for are kept in memory, up to a limit, and written in front of the next.
#pragma once

#include "runtime/base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct fsdp_metrics_log fsdp_metrics_log;

// Opens `path` for appending, creating it, and the folders above it, if it does not exist. FSDP_ERR_INPUT.
// The caller closes *log.
fsdp_status fsdp_metrics_log_open(const char *path, fsdp_metrics_log **log, fsdp_error *error);

// Writes what is still kept, and removes a file that it has created and nothing was written to.
// FSDP_ERR_INPUT, with their number, if lines were lost. NULL is allowed.
fsdp_status fsdp_metrics_log_close(fsdp_metrics_log *log, fsdp_error *error);

typedef struct fsdp_metrics_rewound {
  int64_t damaged; // the number of the first damaged line that stays, or 0
  int64_t dropped; // lines
} fsdp_metrics_rewound;

// Drops the first line whose integer member `key` is above `last`, and all that follow: a run resumed from a
// checkpoint writes these steps again. A line that is not JSON, or has no such member, stays if one that
// stays follows it.
fsdp_status fsdp_metrics_log_rewind(fsdp_metrics_log *log, const char *key, int64_t last,
                                    fsdp_metrics_rewound *rewound, fsdp_error *error);

// Whether the file holds anything.
bool fsdp_metrics_log_holds(const char *path);

// Whether the file holds something that no log is: no line with an integer member `key`, nor a first one of
// JSON that was not finished. It must not be opened: what it holds would be cut off.
bool fsdp_metrics_log_is_other(const char *path, const char *key);

// For messages.
const char *fsdp_metrics_log_path(const fsdp_metrics_log *log);

// Appends `record` as one line. FSDP_ERR_INPUT if the disk is full or fails: nothing of the line is in the
// file then, and it is kept for the next call.
fsdp_status fsdp_metrics_log_write(fsdp_metrics_log *log, const json_t *record, fsdp_error *error);

// A number as JSON; null if it is NaN or infinite, which JSON does not have. A new reference.
json_t *fsdp_metrics_number(double value);
