#include "runtime/base/descriptors.h"

#include "runtime/base/check.h"
#include "runtime/base/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
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

char *fsdp_read_rest(int descriptor, int64_t most, int64_t *bytes) {
  int64_t capacity = 1 << 16;
  char *text = fsdp_alloc((size_t)capacity + 1);
  *bytes = 0;
  for (ssize_t got = 1; got != 0 && *bytes <= most;) {
    got = read(descriptor, text + *bytes, (size_t)(capacity - *bytes));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int reason = errno;
      free(text);
      errno = reason;
      return NULL;
    }
    *bytes += got;
    if (*bytes == capacity) text = fsdp_realloc(text, (size_t)(capacity *= 2) + 1);
  }
  text[*bytes] = 0;
  return text;
}

bool fsdp_sync_folder(const char *folder) {
  int descriptor = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  bool good = descriptor >= 0 && fsync(descriptor) == 0;
  if (descriptor >= 0) close(descriptor);
  return good;
}

static bool is_denied(int reason) {
  return reason == EACCES || reason == EPERM || reason == EROFS;
}

fsdp_status fsdp_fail_write(const char *path, const char *what, fsdp_error *error) {
  const bool full = errno == ENOSPC || errno == EDQUOT;
  return fsdp_fail(error, FSDP_ERR_INPUT, "%s: %s failed (%s); %s or give another folder", path, what,
                   strerror(errno),
                   full               ? "make room there"
                   : is_denied(errno) ? "give this user the right to write there"
                                      : "look at what is there,");
}

const char *fsdp_read_remedy(int reason, const char *other) {
  return is_denied(reason) ? "give this user the right to read it (chmod)" : other;
}
