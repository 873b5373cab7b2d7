// Which build this is.
#pragma once

#include <stdint.h>

// A hash of the file, program or library, that the code of this library lies in: another build has another
// one. 0 if it cannot be read.
uint64_t fsdp_build_id(void);
