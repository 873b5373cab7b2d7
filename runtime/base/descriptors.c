#include "runtime/base/descriptors.h"

#include "runtime/base/progress.h"

#include <errno.h>
#include <unistd.h>

bool fsdp_write_all(int descriptor, const void *data, int64_t bytes) {
  for (int64_t done = 0; done < bytes;) {
    ssize_t put = write(descriptor, (const char *)data + done, (size_t)(bytes - done));
    if (put < 0 && errno == EINTR) continue;
    if (put == 0) errno = EIO;
    if (put <= 0) return false;
    done += put;
  }
  return true;
}

bool fsdp_read_at(int descriptor, int64_t offset, void *out, int64_t bytes) {
  for (int64_t done = 0; done < bytes;) {
    errno = 0;
    ssize_t got = pread(descriptor, (char *)out + done, (size_t)(bytes - done), (off_t)(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += got;
    fsdp_progress_mark();
  }
  return true;
}
