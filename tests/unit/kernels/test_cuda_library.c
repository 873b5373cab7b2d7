// The libraries that only the CUDA device needs are loaded when they are asked for, and a machine without one
// is told so. Needs a build with CUDA, and no GPU. `load NAME` loads one and exits with its status
// (test_no_nvidia.py).
#include "kernels/kernels.h"
#include "runtime/comm/comm_nccl.h"
#include "tests/support/unit_test.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct library {
  const char *title, *file, *instead;
} libraries[] = {
    {"cuBLASLt", "libcublasLt", "LD_LIBRARY_PATH, or use --backend cpu"},
    {"NCCL", "libnccl.so", "LD_LIBRARY_PATH, or use one rank, or --backend cpu"},
};

static fsdp_status load(const struct library *library, fsdp_error *error) {
  return library == &libraries[0] ? fsdp_cuda_backend()->load(error) : fsdp_nccl_load(error);
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
  const struct library *library = *state;
  if (!fsdp_cuda_backend()) skip();
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    fsdp_error error = {0};
    char begin[64];
    snprintf(begin, sizeof begin, "%s cannot be loaded (%s", library->title, library->file);
    const struct rlimit limit = {(rlim_t)1 << 20, (rlim_t)1 << 20};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(10);
    if (load(library, &error) != FSDP_ERR_PEER) _exit(11);
    if (strncmp(error.message, begin, strlen(begin)) != 0) _exit(12);
    _exit(strstr(error.message, library->instead) ? 0 : 13);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_the_library_is_loaded_when_asked_for(void **state) {
  const struct library *library = *state;
  if (!fsdp_cuda_backend()) skip();
  fsdp_error error = {0};
  assert_false(is_mapped(library->file));
  for (int i = 0; i < 2; i++) assert_int_equal(load(library, &error), FSDP_OK);
  assert_true(is_mapped(library->file));
}

static int load_named(const char *name) {
  fsdp_error error = {0};
  for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
    if (strcmp(libraries[i].title, name) == 0) load(&libraries[i], &error);
  }
  if (error.status != FSDP_OK) fprintf(stderr, "%s\n", error.message);
  return (int)error.status;
}

#define OF(test, library) cmocka_unit_test_prestate(test, (void *)(uintptr_t)&libraries[library])

int main(int argc, char **argv) {
  if (argc == 3 && strcmp(argv[1], "load") == 0) return load_named(argv[2]);
  const struct CMUnitTest tests[] = {
      OF(test_a_library_that_cannot_be_loaded, 0),
      OF(test_a_library_that_cannot_be_loaded, 1),
      OF(test_the_library_is_loaded_when_asked_for, 0),
      OF(test_the_library_is_loaded_when_asked_for, 1),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
