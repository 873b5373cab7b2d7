#include "kernels/cpu/isa.h"
#include "runtime/base/check.h"

#include <pthread.h>
#include <string.h>

extern const fsdp_cpu_isa fsdp_cpu_isa_base;
#ifdef FSDP_ISA_LEVELS // x86-64 builds that are not instrumented compile the wider levels as well
extern const fsdp_cpu_isa fsdp_cpu_isa_avx2, fsdp_cpu_isa_avx512;
#endif

enum { LEVELS_MAX = 3 };

static const fsdp_cpu_isa *levels[LEVELS_MAX], *current;
static int level_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void choose(void) {
  levels[level_count++] = &fsdp_cpu_isa_base;
#ifdef FSDP_ISA_LEVELS
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    levels[level_count++] = &fsdp_cpu_isa_avx2;
  if (level_count == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    levels[level_count++] = &fsdp_cpu_isa_avx512;
#endif
  current = levels[level_count - 1];
  const char *wanted = getenv("FSDP_CPU_ISA");
  for (int i = 0; wanted && i < level_count; i++)
    if (strcmp(levels[i]->name, wanted) == 0) current = levels[i];
}

const fsdp_cpu_isa *fsdp_cpu_isa_current(void) {
  FSDP_CHECK(pthread_once(&once, choose) == 0, "choosing the instruction set failed");
  return current;
}

const fsdp_cpu_isa *const *fsdp_cpu_isa_list(int *count) {
  fsdp_cpu_isa_current();
  *count = level_count;
  return levels;
}

const fsdp_kernel_table *fsdp_cpu_kernels(void) {
  return &fsdp_cpu_isa_current()->table;
}
