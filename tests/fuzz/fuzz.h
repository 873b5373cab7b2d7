// What the fuzzers share. Each fuzz_NAME.c hands libFuzzer's bytes to one parser of files and checks what the
// parser accepts; scripts/fuzz.sh builds and runs them.
//
//   seeds/NAME/   committed inputs      NAME.dict   words of the format
//
// A parser must return FSDP_ERR_* or accept; a crash, an assertion, a leak, a hang or 2 GB of memory is a
// finding.
#pragma once

#include "runtime/base/check.h"
#include "runtime/base/status.h"

#include <stddef.h>
#include <stdint.h>

// A file of this process named `name`, with these bytes, in a folder of its own. Owned by the module; the
// path is valid until the next call with the same name.
const char *fsdp_fuzz_file(const char *name, const void *bytes, size_t count);

// The folder in which the files lie.
const char *fsdp_fuzz_folder(void);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
