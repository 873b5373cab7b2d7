// The end of a job: errors that happen once the step runs print rank, host, call and place, and end every
// rank.
//
// Until fsdp_job_identify is called this process is the whole job. Under MPI the world sets how the others
// are ended.
#pragma once

#include "runtime/base/check.h"

#define FSDP_HOST_NAME_BYTES 64

// Who this process is, for messages. `abort_job` ends every rank with the given exit status and does not
// return.
void fsdp_job_identify(int rank, const char *host, void (*abort_job)(int status));

// Prints "<program>: error: rank R on HOST: <call> failed at <file>:<line>: <message>" and ends the job with
// FSDP_ERR_PEER.
FSDP_NORETURN void fsdp_job_failed(const char *file, int line, const char *call, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

// One line on standard error, "<program>: note: rank R on HOST: <message>", and the job continues.
void fsdp_job_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Ends the job without a word, where a peer has said already what was wrong.
FSDP_NORETURN void fsdp_job_end(int status);

#define FSDP_JOB_FAIL(call, ...) fsdp_job_failed(__FILE__, __LINE__, call, __VA_ARGS__)
