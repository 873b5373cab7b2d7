#include "runtime/data/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

fsdp_status fsdp_mapped_file_open(const char *path, fsdp_mapped_file *file, fsdp_error *error) {
  struct stat information;
  // A pipe is refused below; without O_NONBLOCK, opening one without a writer would wait forever.
  int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  *file = (fsdp_mapped_file){0};
  if (descriptor < 0 || fstat(descriptor, &information)) {
    int reason = errno;
    if (descriptor >= 0) close(descriptor);
    return fsdp_fail(error, FSDP_ERR_INPUT,
                     "%s: cannot be opened (%s); --data takes files separated by commas, or patterns", path,
                     strerror(reason));
  }
  fsdp_status status = FSDP_OK;
  if (S_ISDIR(information.st_mode))
    status =
        fsdp_fail(error, FSDP_ERR_INPUT,
                  "%s: is a folder; give the files in it, as a pattern such as \"%s/*.bin\"", path, path);
  else if (!S_ISREG(information.st_mode))
    status = fsdp_fail(error, FSDP_ERR_INPUT, "%s: is not a regular file; give one that is", path);
  else if (information.st_size == 0)
    status = fsdp_fail(error, FSDP_ERR_INPUT, "%s: is empty; give something to train on", path);
  if (!status) {
    void *bytes = mmap(NULL, (size_t)information.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (bytes == MAP_FAILED)
      status =
          fsdp_fail(error, FSDP_ERR_INPUT, "%s: cannot be mapped (%s); give a smaller file, or fewer of them",
                    path, strerror(errno));
    else
      *file = (fsdp_mapped_file){.bytes = bytes, .count = information.st_size};
  }
  close(descriptor);
  return status;
}

void fsdp_mapped_file_close(fsdp_mapped_file *file) {
  if (file->bytes) munmap((void *)file->bytes, (size_t)file->count);
  *file = (fsdp_mapped_file){0};
}
