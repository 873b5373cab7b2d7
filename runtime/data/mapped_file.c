#include "runtime/data/mapped_file.h"

#include "runtime/base/check.h"
#include "runtime/base/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- Pages that are gone

// A mapping, for the signal handler, which may run at any moment on any thread: entries are never freed, and
// those that are closed are used again.
typedef struct mapping {
  struct mapping *next;
  _Atomic uintptr_t begin, end; // 0, 0: closed
  char *path;
} mapping;

static _Atomic(mapping *) mappings;
static _Atomic(mapping *) lost; // the first of which a page was gone
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before; // ours

static void pass_on(int number, siginfo_t *information, void *context) {
  if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(number, information, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  } else {
    signal(number, SIG_DFL); // it comes again when the handler returns
  }
}

static void replace_lost_pages(int number, siginfo_t *information, void *context) {
  uintptr_t at = (uintptr_t)information->si_addr;
  int reason = errno;
  for (mapping *m = atomic_load(&mappings); m; m = m->next) {
    uintptr_t begin = atomic_load(&m->begin), end = atomic_load(&m->end);
    if (at < begin || at >= end) continue;
    uintptr_t page = at - (at - begin) % (uintptr_t)sysconf(_SC_PAGESIZE);
    void *zeros = mmap((void *)page, end - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (zeros == MAP_FAILED) break;
    mapping *none = NULL;
    atomic_compare_exchange_strong(&lost, &none, m);
    errno = reason;
    return;
  }
  pass_on(number, information, context);
}

static void watch_pages(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = replace_lost_pages;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, &before);
}

static void add_mapping(const fsdp_mapped_file *file, const char *path) {
  static bool watched;
  pthread_mutex_lock(&changing);
  if (!watched) watch_pages();
  watched = true;
  mapping *m = atomic_load(&mappings);
  while (m && (atomic_load(&m->end) || m == atomic_load(&lost))) m = m->next;
  if (!m) {
    m = fsdp_alloc_zeroed(1, sizeof *m);
    m->next = atomic_load(&mappings);
    atomic_store(&mappings, m);
  }
  free(m->path);
  m->path = fsdp_strdup(path, "a path");
  atomic_store(&m->begin, (uintptr_t)file->bytes);
  atomic_store(&m->end, (uintptr_t)file->bytes + (uintptr_t)file->count);
  pthread_mutex_unlock(&changing);
}

static void remove_mapping(const fsdp_mapped_file *file) {
  pthread_mutex_lock(&changing);
  for (mapping *m = atomic_load(&mappings); m; m = m->next) {
    if (atomic_load(&m->begin) != (uintptr_t)file->bytes) continue;
    atomic_store(&m->end, 0);
    atomic_store(&m->begin, 0);
  }
  pthread_mutex_unlock(&changing);
}

fsdp_status fsdp_mapped_file_lost(fsdp_error *error) {
  const mapping *m = atomic_load(&lost);
  if (!m) return FSDP_OK;
  return fsdp_fail(
      error, FSDP_ERR_INPUT,
      "%s: a part of it can no longer be read: it was truncated while it was in use, or its disk "
      "fails; data must not change during a run: restore the file and start again",
      m->path);
}

// ---- A file

fsdp_status fsdp_mapped_file_open(const char *path, fsdp_mapped_file *file, fsdp_error *error) {
  struct stat information;
  // A pipe is refused below; without O_NONBLOCK, opening one without a writer would wait forever.
  int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  *file = (fsdp_mapped_file){0};
  if (descriptor < 0 || fstat(descriptor, &information)) {
    int reason = errno;
    if (descriptor >= 0) close(descriptor);
    return fsdp_fail(error, FSDP_ERR_INPUT, "%s: cannot be opened (%s); %s", path, strerror(reason),
                     fsdp_read_remedy(reason, "give files that are there, separated by commas, or patterns"));
  }
  fsdp_status status = FSDP_OK;
  if (S_ISDIR(information.st_mode))
    status = fsdp_fail(error, FSDP_ERR_INPUT,
                       "%s: is a folder; give the files in it, as a pattern such as \"%s%s*.bin\"", path,
                       path, path[strlen(path) - 1] == '/' ? "" : "/");
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
  if (!status) add_mapping(file, path);
  return status;
}

void fsdp_mapped_file_close(fsdp_mapped_file *file) {
  if (file->bytes) {
    remove_mapping(file);
    munmap((void *)file->bytes, (size_t)file->count);
  }
  *file = (fsdp_mapped_file){0};
}
