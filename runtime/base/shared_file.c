#include "runtime/base/shared_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int fsdp_shared_file_create(const char *name, int64_t bytes) {
  int file = memfd_create(name, MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, bytes) == 0) return file;
  if (file >= 0) close(file);
  return -1;
}

fsdp_shared_file fsdp_shared_file_describe(int descriptor) {
  struct stat status;
  if (descriptor < 0 || fstat(descriptor, &status) != 0) return (fsdp_shared_file){.descriptor = -1};
  return (fsdp_shared_file){descriptor, (uint64_t)status.st_dev, (uint64_t)status.st_ino};
}

int fsdp_shared_file_open(int process, const fsdp_shared_file *file) {
  if (file->descriptor < 0) return -1;
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", process, file->descriptor);
  int opened = open(path, O_RDWR | O_CLOEXEC);
  if (opened < 0) return -1;
  // In another process namespace the same number may be another process.
  fsdp_shared_file found = fsdp_shared_file_describe(opened);
  if (found.device == file->device && found.inode == file->inode) return opened;
  close(opened);
  return -1;
}

void *fsdp_shared_file_map(int descriptor, int64_t bytes) {
  if (descriptor < 0) return NULL;
  void *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  close(descriptor);
  return memory == MAP_FAILED ? NULL : memory;
}
