// Files of a training run besides data and weights: the experiment's folder and the log.
#pragma once

#include "launcher/options/options.h"
#include "launcher/report/metrics_log.h"

// Makes the experiment's folder if it is missing; writes its path to `path`. FSDP_ERR_INPUT.
fsdp_status fsdp_train_make_folder(const fsdp_options *options, char *path, size_t path_bytes,
                                   fsdp_error *error);

// Opens the log that --log names, or that of the experiment's folder (created if it is missing), emptied if
// `fresh`; *log is NULL if there is neither. FSDP_ERR_INPUT.
fsdp_status fsdp_train_open_log(const fsdp_options *options, bool fresh, fsdp_metrics_log **log,
                                fsdp_error *error);
