// The error file: one JSON object about the first failure of a job, for the scheduler or user who restarts
// it.
//
//   {"rank", "host", "process", "step", "status", "signal", "message", "time"}
//
// Written to a temporary file and linked into place, so that it is whole or absent, and the first one stays.
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct fsdp_error_report {
  int rank;         // that failed
  const char *host; // its host
  int process;      // its id there
  int64_t step;     // the run's step at the failure, 0: before the first
  int status;       // exit status: fsdp_status, or 128 + signal if one ended it
  int signal;       // or 0
  const char *message;
} fsdp_error_report;

// From now on failures of this process are written to `folder`/error.json, also if a fatal signal ends it
// (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT). `rank` and `host` are this process's. An older file is removed
// if `clears` is set (by one rank, before the others call this).
void fsdp_error_file_open(const char *folder, int rank, const char *host, bool clears);

// Does nothing without fsdp_error_file_open or if the file exists. Safe in a signal handler.
void fsdp_error_file_write(const fsdp_error_report *report);
