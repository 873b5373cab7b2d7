// Files without a name that processes of one machine share: made by one, opened by others through /proc.
#pragma once

#include <stdint.h>

// A file of a process, and what proves that another process has opened that same file.
typedef struct fsdp_shared_file {
  int descriptor; // -1: none
  uint64_t device, inode;
} fsdp_shared_file;

// A new file of `bytes` zeros; its descriptor, or -1.
int fsdp_shared_file_create(const char *name, int64_t bytes);

// What others need to open the descriptor (-1 is allowed).
fsdp_shared_file fsdp_shared_file_describe(int descriptor);

// Opens a file of another process of this machine; -1 if that is not possible.
int fsdp_shared_file_open(int process, const fsdp_shared_file *file);

// Maps all of it, readable and writable; NULL if that is not possible. Closes the descriptor.
void *fsdp_shared_file_map(int descriptor, int64_t bytes);
