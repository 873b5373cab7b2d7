// The error file: one JSON object about the first failure of a job, for the scheduler or user who restarts
// it.
//
//   {"rank", "host", "process", "step", "status", "signal", "message", "time"}
//
// Written to a temporary file and linked into place, so that it is whole or absent, and the first one stays.
#pragma once

#include "runtime/base/job.h"

#include <stdbool.h>

// From now on failures of this process are written to `folder`/error.json, also if a fatal signal ends it
// (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT). `rank` and `host` are this process's. An older file is removed
// if `clears` is set (by one rank, before the others call this).
void fsdp_error_file_open(const char *folder, int rank, const char *host, bool clears);

// Writes it, with the step of the run that this rank is in; of a signal the exit status is 128 + signal. Does
// nothing without fsdp_error_file_open or if the file exists. Safe in a signal handler.
void fsdp_error_file_write(const fsdp_job_end *end);
