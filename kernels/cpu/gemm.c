#include "kernels/cpu/gemm.h"

#include "kernels/cpu/gemm_builtin.h"
#include "kernels/cpu/gemm_library.h"
#include "kernels/cpu/isa.h"
#include "runtime/base/check.h"
#include "runtime/base/size.h"

// How c is cut into tasks follows from the shape alone, never from the number of threads: a library's order
// of summation can depend on the shape that it is given, and results must be equal to the bit on any number
// of threads.
typedef struct grid {
  int64_t rows, columns;           // of a task
  int64_t row_tasks, column_tasks; // tasks along m and along n
} grid;

typedef struct run {
  const fsdp_gemm *gemm;
  grid grid;
  bool library;
} run;

enum {
  TASK_ROWS = 480,
  TASK_COLUMNS = 512,
};

static int64_t even_part(int64_t count, int64_t most, int64_t unit) {
  int64_t parts = (count + most - 1) / most;
  return fsdp_round_up((count + parts - 1) / parts, unit);
}

static grid divide(const fsdp_gemm *g) {
  grid d = {.rows = even_part(g->m, TASK_ROWS, 48), .columns = even_part(g->n, TASK_COLUMNS, 64)};
  d.row_tasks = (g->m + d.rows - 1) / d.rows;
  d.column_tasks = (g->n + d.columns - 1) / d.columns;
  return d;
}

static const void *moved(const void *data, fsdp_dtype dtype, int64_t elements) {
  return (const char *)data + elements * fsdp_dtype_bytes(dtype);
}

// Rounds a task's fp32 sums into its bf16 part of c.
static void round_into(const fsdp_gemm *g, const float *sums) {
  const fsdp_cpu_isa *isa = fsdp_cpu_isa_current();
  for (int64_t i = 0; i < g->m; i++)
    isa->convert(FSDP_F32, sums + i * g->n, FSDP_BF16, (char *)g->c + i * g->c_stride * 2, g->n);
}

static void multiply(const fsdp_gemm *g, bool library, void *scratch) {
  if (library && g->ab_dtype == FSDP_F32) {
    fsdp_gemm_library_fp32(g);
  } else if (library) {
    fsdp_gemm_library_bf16(g);
  } else if (g->c_dtype == FSDP_F32) {
    fsdp_cpu_isa_current()->product(g, scratch);
  } else {
    const fsdp_cpu_isa *isa = fsdp_cpu_isa_current();
    fsdp_gemm wide = *g;
    wide.c = (char *)scratch + FSDP_PRODUCT_SCRATCH_BYTES;
    wide.c_dtype = FSDP_F32;
    wide.c_stride = g->n;
    FSDP_CHECK((size_t)(g->m * g->n) * sizeof(float) <= FSDP_POOL_SCRATCH_BYTES - FSDP_PRODUCT_SCRATCH_BYTES,
               "a task's sums exceed the scratch");
    for (int64_t i = 0; g->accumulate && i < g->m; i++)
      isa->convert(FSDP_BF16, (char *)g->c + i * g->c_stride * 2, FSDP_F32, (float *)wide.c + i * g->n, g->n);
    isa->product(&wide, scratch);
    round_into(g, wide.c);
  }
}

static void run_task(void *argument, int64_t index, void *scratch) {
  const run *r = argument;
  const fsdp_gemm *g = r->gemm;
  int64_t m = index / r->grid.column_tasks * r->grid.rows, n = index % r->grid.column_tasks * r->grid.columns;
  fsdp_gemm part = *g;
  part.m = fsdp_min_i64(r->grid.rows, g->m - m);
  part.n = fsdp_min_i64(r->grid.columns, g->n - n);
  part.a = moved(g->a, g->ab_dtype, g->a_transposed ? m : m * g->a_stride);
  part.b = moved(g->b, g->ab_dtype, g->b_transposed ? n * g->b_stride : n);
  part.c = (char *)g->c + (m * g->c_stride + n) * fsdp_dtype_bytes(g->c_dtype);
  multiply(&part, r->library, scratch);
}

void fsdp_gemm_run(fsdp_pool *pool, const fsdp_gemm *g) {
  FSDP_CHECK(g->m >= 0 && g->n >= 0 && g->k > 0, "a product of %lld x %lld x %lld", (long long)g->m,
             (long long)g->n, (long long)g->k);
  FSDP_CHECK(g->ab_dtype == FSDP_F32 || g->ab_dtype == FSDP_BF16, "operands of %s",
             fsdp_dtype_name(g->ab_dtype));
  FSDP_CHECK(g->c_dtype == FSDP_F32 || g->ab_dtype == FSDP_BF16, "an fp32 product stored as %s",
             fsdp_dtype_name(g->c_dtype));
  FSDP_CHECK(g->a_stride >= (g->a_transposed ? g->m : g->k) &&
                 g->b_stride >= (g->b_transposed ? g->k : g->n) && g->c_stride >= g->n,
             "strides %lld, %lld, %lld are shorter than the rows", (long long)g->a_stride,
             (long long)g->b_stride, (long long)g->c_stride);
  run r = {.gemm = g, .grid = divide(g)};
  r.library = fsdp_gemm_library_name() && (g->ab_dtype == FSDP_F32 || fsdp_gemm_native_bf16());
  fsdp_pool_run(pool, r.grid.row_tasks * r.grid.column_tasks, run_task, &r);
}

#if !defined(FSDP_WITH_DNNL) && !defined(FSDP_WITH_OPENBLAS)
const char *fsdp_gemm_library_name(void) {
  return NULL;
}
bool fsdp_gemm_native_bf16(void) {
  return false;
}
void fsdp_gemm_library_fp32(const fsdp_gemm *gemm) {
  FSDP_CHECK(!gemm, "this build has no matrix library");
}
void fsdp_gemm_library_bf16(const fsdp_gemm *gemm) {
  FSDP_CHECK(!gemm, "this build has no matrix library");
}
#endif

const char *fsdp_gemm_library(void) {
  const char *library = fsdp_gemm_library_name();
  return library ? library : "built-in";
}
