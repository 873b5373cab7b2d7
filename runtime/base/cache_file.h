// What was learned about this machine, in small text files that may be deleted at any time: in
// $XDG_CACHE_HOME/fsdp, else in ~/.cache/fsdp.
//
//   fsdp cache 1       what it is
//   IDENTITY           what it is of: a GPU, a driver, a library, ...; one line
//   ...                lines of text
//   xxh64 0123...      checksum of all lines before
//
// A file is replaced whole, by renaming, so that processes may read and write at the same time; of two that
// write, the later one's stays. A file that is damaged, that belongs to another user or that others may write
// is never used. No failure matters to the run: it continues without the file, and says so in one line.
#pragma once

#include <stdbool.h>

#define FSDP_CACHE_WHY_BYTES 640

// The lines of file `name`, each with its newline; the caller frees them. NULL if there is none of this
// identity, and then `why` is empty, or if it cannot be used, and then `why` says why not.
char *fsdp_cache_read(const char *name, const char *identity, char why[FSDP_CACHE_WHY_BYTES]);

// Replaces file `name`, in a folder that it makes if there is none. False if it cannot, and `why` says why
// not.
bool fsdp_cache_write(const char *name, const char *identity, const char *text,
                      char why[FSDP_CACHE_WHY_BYTES]);
