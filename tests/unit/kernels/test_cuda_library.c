// The library that only the CUDA device needs is loaded when it is asked for, and a machine without it is
// told so. Needs a build with CUDA, and no GPU.
#include "kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const fsdp_kernel_backend *backend_or_skip(void) {
  const fsdp_kernel_backend *backend = fsdp_cuda_backend();
  if (!backend) skip();
  return backend;
}

static bool is_mapped(const char *library) {
  char line[4096];
  bool found = false;
  FILE *maps = fopen("/proc/self/maps", "r");
  assert_non_null(maps);
  while (!found && fgets(line, sizeof line, maps)) found = strstr(line, library) != NULL;
  fclose(maps);
  return found;
}

// In a process that may not map as much as the library takes: the child's status tells what it saw.
static void test_a_library_that_cannot_be_loaded(void **state) {
  (void)state;
  const fsdp_kernel_backend *backend = backend_or_skip();
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    fsdp_error error = {0};
    const struct rlimit limit = {(rlim_t)1 << 20, (rlim_t)1 << 20};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(10);
    if (backend->load(&error) != FSDP_ERR_PEER) _exit(11);
    if (!strstr(error.message, "cuBLASLt cannot be loaded (libcublasLt.so.")) _exit(12);
    _exit(strstr(error.message, "LD_LIBRARY_PATH, or use --backend cpu") ? 0 : 13);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_the_library_is_loaded_when_asked_for(void **state) {
  (void)state;
  const fsdp_kernel_backend *backend = backend_or_skip();
  fsdp_error error = {0};
  assert_false(is_mapped("libcublasLt"));
  for (int i = 0; i < 2; i++) assert_int_equal(backend->load(&error), FSDP_OK);
  assert_true(is_mapped("libcublasLt"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_library_that_cannot_be_loaded),
      cmocka_unit_test(test_the_library_is_loaded_when_asked_for),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
