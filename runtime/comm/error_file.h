// The error file: one JSON object about the first failure of a job, for whoever restarts it.
//
//   {"rank", "host", "process", "step", "status", "signal", "message", "time"}
//
// Written beside its place and linked to it, so that it is whole or not there, and the first one stays.
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct fsdp_error_report {
  int rank;         // that failed
  const char *host; // its host
  int process;      // its id there
  int64_t step;     // of the run that it was in, 0: before the first
  int status;       // exit status: fsdp_status, or 128 + signal where one ended it
  int signal;       // or 0
  const char *message;
} fsdp_error_report;

// From now on failures of this process are written to `folder`/error.json, also where a fatal signal ends it
// (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT). `rank` and `host` are this process's. What lies there from
// before is removed where `clears` (one rank does, and others come after it).
void fsdp_error_file_open(const char *folder, int rank, const char *host, bool clears);

// Nothing without fsdp_error_file_open; nothing where the file is there already. Safe in a signal handler.
void fsdp_error_file_write(const fsdp_error_report *report);
