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

// Who writes down what fsdp_job_record is given (the error file, runtime/comm/error_file.h); nobody at first.
// It is called in a child of this process, and must do with what is safe in a signal handler.
void fsdp_job_set_recorder(void (*recorder)(int rank, const char *host, int process, const char *message));

// Where messages go from now on: `terminal` in place of standard error, and `log` too, whose descriptor must
// not block; -1: none. So a message waits for no disk, and for none that copies this process's output.
void fsdp_job_set_outputs(int terminal, int log);

// Prints "<program>: error: <message>", the job's one error message, in one write past stdio, whose lock a
// stuck thread may hold. A terminal that takes nothing for a second is left out.
void fsdp_job_say(const char *message);

// Hands the message to the recorder in a process of its own, which may hang on a disk. `rank` is the one that
// failed. Returns that process, or -1; fsdp_job_record_wait waits for it for a second.
int fsdp_job_record(int rank, const char *host, int process, const char *message);
void fsdp_job_record_wait(int writer);

// Called by signal handlers: this process was asked to end, so that the end of others is no surprise.
void fsdp_job_asked_to_end(void);
bool fsdp_job_is_asked_to_end(void);
