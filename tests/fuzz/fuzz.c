#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[64];

static void remove_folder(void) {
  char command[96];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  if (system(command) != 0) fprintf(stderr, "%s was not removed\n", folder);
}

const char *fsdp_fuzz_folder(void) {
  if (folder[0]) return folder;
  // In memory: an input is written, read once and overwritten.
  snprintf(folder, sizeof folder, "%s/fsdp-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
  FSDP_CHECK(mkdtemp(folder), "no folder for inputs");
  atexit(remove_folder);
  return folder;
}

const char *fsdp_fuzz_file(const char *name, const void *bytes, size_t count) {
  static char path[160];
  snprintf(path, sizeof path, "%s/%s", fsdp_fuzz_folder(), name);
  int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  FSDP_CHECK(file >= 0 && write(file, bytes, count) == (ssize_t)count, "%s was not written", path);
  close(file);
  return path;
}
