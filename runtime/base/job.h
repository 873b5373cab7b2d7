// The end of a job: an error that happens once the step runs names rank and host, and ends every rank.
//
// Until fsdp_job_identify is called this process is the whole job. In a world of several ranks the watch
// (runtime/watch/watch.h) prints the message and ends the others.
#pragma once

#include "runtime/base/check.h"
#include "runtime/base/status.h"

#include <stdatomic.h>
#include <stdbool.h>

#define FSDP_HOST_NAME_BYTES 64

// Who this process is, for messages. `fail` passes a message to what ends the job; where it returns, or is
// NULL, this process is to print it and to end. fsdp_job_name leaves `fail` as it is.
void fsdp_job_name(int rank, const char *host);
void fsdp_job_identify(int rank, const char *host,
                       void (*fail)(fsdp_status status, const char *message, bool follows));

// Prints "<program>: error: rank R (host HOST): <call> failed: <message>" once per job and ends the job with
// FSDP_ERR_PEER. If a peer's end may be the cause (`follows`), a rank that saw the cause reports first.
FSDP_NORETURN void fsdp_job_failed(bool follows, const char *call, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// The same for a machine that has no more memory or threads: "<program>: error: rank R (host HOST):
// <message>", and FSDP_ERR_CAPACITY.
FSDP_NORETURN void fsdp_job_exhausted(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define FSDP_JOB_FAIL(call, ...)      fsdp_job_failed(false, call, __VA_ARGS__)
#define FSDP_JOB_PEER_FAIL(call, ...) fsdp_job_failed(true, call, __VA_ARGS__)

// One line on standard error, "<program>: note: rank R (host HOST): <message>", and the job continues.
void fsdp_job_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Sets what stores the messages given to fsdp_job_record (the error file, runtime/watch/error_file.h); none
// at first. It is called in a child of this process, and may use only what is safe in a signal handler.
typedef struct fsdp_job_end {
  int rank; // that failed
  const char *host;
  int process; // its id there
  fsdp_status status;
  const char *message;
  int signal; // that ended it; 0: none
} fsdp_job_end;
void fsdp_job_set_recorder(void (*recorder)(const fsdp_job_end *end));

// Where messages go from now on: to `terminal` in place of standard error, and to `log` too, whose descriptor
// must not block (-1: no log). So a message waits neither for a disk nor for a process that copies output.
void fsdp_job_set_outputs(int terminal, int log);

// Prints "<program>: error: <message>", the job's one error message, in one write. It bypasses stdio, whose
// lock a stuck thread may hold. A terminal that accepts nothing for a second is skipped.
void fsdp_job_say(const char *message);

// Calls the recorder in a process of its own, which may hang on a disk. Returns that process, or -1.
// fsdp_job_record_wait waits for it for at most a second.
int fsdp_job_record(const fsdp_job_end *end);
void fsdp_job_record_wait(int writer);

// Called by signal handlers: this process was asked to end, so the end of its peers is expected.
void fsdp_job_asked_to_end(void);
bool fsdp_job_is_asked_to_end(void);

// Called by the handler of SIGCONT, with which mpirun begins to end the ranks of a job of which one has
// failed: SIGTERM and SIGKILL follow. Whether that was within the last `ms`.
void fsdp_job_continued(void);
bool fsdp_job_was_continued(int64_t ms);

// Keeps that in *asked from now on, in memory that another process reads and that stays.
void fsdp_job_share_asked(_Atomic bool *asked);
