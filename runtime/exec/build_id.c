#include "runtime/exec/build_id.h"

#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

typedef struct search {
  uintptr_t address;
  char path[4096];
} search;

// The loaded file that holds the address; the program itself has no name here.
static int look(struct dl_phdr_info *file, size_t bytes, void *context) {
  search *s = context;
  (void)bytes;
  for (int i = 0; i < file->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &file->dlpi_phdr[i];
    const uintptr_t begin = file->dlpi_addr + part->p_vaddr;
    if (part->p_type != PT_LOAD || s->address < begin || s->address - begin >= part->p_memsz) continue;
    const bool named = file->dlpi_name && file->dlpi_name[0];
    snprintf(s->path, sizeof s->path, "%s", named ? file->dlpi_name : "/proc/self/exe");
    return 1;
  }
  return 0;
}

uint64_t fsdp_build_id(void) {
  search s = {.address = (uintptr_t)&fsdp_build_id};
  struct stat status;
  uint64_t hash = 0;
  if (!dl_iterate_phdr(look, &s)) return 0;
  int file = open(s.path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  if (fstat(file, &status) == 0 && status.st_size > 0) {
    void *data = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (data != MAP_FAILED) {
      hash = XXH64(data, (size_t)status.st_size, 0);
      munmap(data, (size_t)status.st_size);
    }
  }
  close(file);
  return hash;
}
