// Status codes and the one error message that a failing call hands up.
//
// A function that can fail because of configuration, files or capacity returns fsdp_status and fills the
// caller's fsdp_error with one complete sentence: what, which value, where, and what to do. main prints it
// and exits with the status. Broken invariants are assertions (check.h); device and communicator failures
// inside a step abort the job (runtime/exec).
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// Values are the programs' exit statuses.
typedef enum fsdp_status {
  FSDP_OK = 0,
  FSDP_ERR_OPTION = 2,    // a bad option or combination of options
  FSDP_ERR_INPUT = 3,     // a bad or missing input file
  FSDP_ERR_CAPACITY = 4,  // does not fit in memory
  FSDP_ERR_PEER = 5,      // a device, a communicator or a peer failed
  FSDP_ERR_NOT_FINITE = 6 // the loss or the gradient's norm is not finite, or the state
} fsdp_status;

typedef struct fsdp_error {
  fsdp_status status;
  char message[1024];
} fsdp_error;

// Fills `error` (may be NULL) and returns `status`, so that a caller writes `return fsdp_fail(error, ...)`.
// Control characters in names from outside become "?": a message is one line.
fsdp_status fsdp_fail(fsdp_error *error, fsdp_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#ifdef __cplusplus
}
#endif
