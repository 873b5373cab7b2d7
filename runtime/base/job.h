// The end of a job: errors that happen once the step runs name rank and host, and end every rank.
//
// Until fsdp_job_identify is called this process is the whole job. In a world of several ranks the watch
// (runtime/comm/watch.h) prints the message and ends the others.
#pragma once

#include "runtime/base/check.h"

#include <stdbool.h>

#define FSDP_HOST_NAME_BYTES 64

// Who this process is, for messages. `fail` hands a message over to whoever ends the job and does not return;
// NULL: this process is all there is.
void fsdp_job_identify(int rank, const char *host, void (*fail)(const char *message, bool follows));

// Prints "<program>: error: rank R (host HOST): <call> failed: <message>" once a job and ends it with
// FSDP_ERR_PEER. Where a peer's end may be the cause (`follows`), whoever saw that speaks first.
FSDP_NORETURN void fsdp_job_failed(bool follows, const char *call, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define FSDP_JOB_FAIL(call, ...)      fsdp_job_failed(false, call, __VA_ARGS__)
#define FSDP_JOB_PEER_FAIL(call, ...) fsdp_job_failed(true, call, __VA_ARGS__)

// One line on standard error, "<program>: note: rank R (host HOST): <message>", and the job continues.
void fsdp_job_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Who writes down what fsdp_job_report prints (the error file, runtime/comm/error_file.h); nobody at first.
void fsdp_job_set_recorder(void (*recorder)(int rank, const char *host, int process, const char *message));

// Prints the job's one error message and hands it to the recorder. `rank` is the one that failed.
void fsdp_job_report(int rank, const char *host, int process, const char *message);

// Called by signal handlers: this process was asked to end, so that the end of others is no surprise.
void fsdp_job_asked_to_end(void);
bool fsdp_job_is_asked_to_end(void);
