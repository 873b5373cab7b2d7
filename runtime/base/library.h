// Libraries that a machine may lack: loaded when they are first used, never linked, so that a program starts
// and uses the CPU without them.
#pragma once

#include "runtime/base/status.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_library_function {
  const char *name;
  void *place;      // the pointer to the function, which is set
  bool is_optional; // NULL where the library is older than it
} fsdp_library_function;

typedef struct fsdp_library {
  const char *title, *file;     // "NCCL", "libnccl.so.2"
  const char *folder;           // where it lay when this was built; "": nowhere
  const char *source, *instead; // for messages: "which comes with PyTorch", "use --backend cpu"
  const char *least;            // of the library, that has all functions: "2.19"
  const fsdp_library_function *functions;
  int function_count;
} fsdp_library;

// Opens the library by its name, as the dynamic linker finds it, or where it lay when this was built, and
// sets all pointers; after an error none is to be used. FSDP_ERR_PEER names the file, what was tried and the
// remedy.
fsdp_status fsdp_library_load(const fsdp_library *library, fsdp_error *error);

#ifdef __cplusplus
}
#endif
