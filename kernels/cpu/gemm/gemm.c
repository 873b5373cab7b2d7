#include "kernels/cpu/gemm/gemm.h"

#include "kernels/cpu/gemm/gemm_library.h"
#include "kernels/cpu/isa.h"
#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// How c is cut into tasks, one or more per thread.
typedef struct grid {
  int64_t rows, columns;           // of a task
  int64_t row_tasks, column_tasks; // tasks along m and along n
} grid;

typedef struct run {
  const fsdp_gemm *gemm;
  grid grid;
  bool by_library;
} run;

enum {
  // Tasks are whole multiples of these, so that register tiles (6 or 14 rows, up to 32 columns; a library's
  // are similar) are full.
  ROW_UNIT = 42,
  COLUMN_UNIT = 64,
  // A library packs all of b for every task, so columns are cut only when rows are cut down to this. Packing
  // a transposed fp32 b costs more: there rows are cut only when columns are cut down to this.
  LIBRARY_ROWS = 256,
  LIBRARY_COLUMNS = 384,
  LIBRARY_ROW_TASKS = 8, // from here on columns of a bf16 c are not cut
  LIBRARY_SUMS = FSDP_POOL_SCRATCH_BYTES / 4,
  // A bf16 result is summed in fp32 in the scratch, in pieces of at most this.
  SUM_ROWS = 480,
  SUM_COLUMNS = 512,
};

static int64_t part_of(int64_t count, int64_t parts, int64_t unit) {
  return fsdp_round_up((count + parts - 1) / parts, unit);
}

// Every task packs its rows of a and columns of b again. Of the grids that occupy all threads, this takes the
// one whose slowest thread has the least work. Costs are in vector instructions per contraction index: a
// multiply-add covers about 16 elements, and packing one element costs about two of them.
static grid divide(const fsdp_gemm *g, int64_t threads) {
  grid best = {0};
  double least = 0;
  for (int64_t i = 1; i <= threads; i++) {
    grid d = {.rows = part_of(g->m, i, ROW_UNIT),
              .columns = part_of(g->n, (threads + i - 1) / i, COLUMN_UNIT)};
    d.row_tasks = (g->m + d.rows - 1) / d.rows;
    d.column_tasks = (g->n + d.columns - 1) / d.columns;
    double rows = (double)fsdp_min_i64(d.rows, g->m), columns = (double)fsdp_min_i64(d.columns, g->n);
    int64_t rounds = (d.row_tasks * d.column_tasks + threads - 1) / threads;
    double cost = (double)rounds * (rows * columns / 16 + 2 * (rows + columns));
    if (best.rows == 0 || cost < least) best = d, least = cost;
  }
  return best;
}

static grid whole_parts(const fsdp_gemm *g, int64_t row_tasks, int64_t column_tasks) {
  grid d = {.rows = part_of(g->m, row_tasks, COLUMN_UNIT),
            .columns = part_of(g->n, column_tasks, COLUMN_UNIT)};
  d.row_tasks = (g->m + d.rows - 1) / d.rows;
  d.column_tasks = (g->n + d.columns - 1) / d.columns;
  return d;
}

static grid divide_fp32_for_library(const fsdp_gemm *g, int64_t tasks) {
  int64_t row_tasks = 1, column_tasks = 1;
  if (g->b_transposed) {
    while (column_tasks < tasks && g->n >= 2 * column_tasks * LIBRARY_COLUMNS) column_tasks *= 2;
    row_tasks = tasks / column_tasks;
  } else {
    while (row_tasks < tasks && g->m >= 2 * row_tasks * LIBRARY_ROWS) row_tasks *= 2;
    column_tasks = tasks / row_tasks;
  }
  return whole_parts(g, row_tasks, column_tasks);
}

// oneDNN takes whole rows of a, all of b and whole rows of c as they are. Of other parts, such as columns of
// c or of a transposed a, it sums a bf16 result in an fp32 copy, which has to fit the scratch.
static bool has_whole_rows(const fsdp_gemm *g, const grid *d) {
  return d->column_tasks == 1 && g->c_stride == g->n && g->b_stride == (g->b_transposed ? g->k : g->n) &&
         (g->a_transposed ? d->row_tasks == 1 && g->a_stride == g->m : g->a_stride == g->k);
}

static grid divide_bf16_for_library(const fsdp_gemm *g, int64_t tasks) {
  int64_t row_tasks = 1;
  while (row_tasks < tasks && g->m >= 2 * row_tasks * LIBRARY_ROWS) row_tasks *= 2;
  int64_t column_tasks = row_tasks < LIBRARY_ROW_TASKS ? tasks / row_tasks : 1;
  grid d = whole_parts(g, row_tasks, column_tasks);
  if (g->c_dtype == FSDP_F32 || has_whole_rows(g, &d)) return d;
  while (d.rows * d.columns > LIBRARY_SUMS) {
    if (d.rows > LIBRARY_ROWS) {
      row_tasks *= 2;
    } else {
      column_tasks *= 2;
    }
    d = whole_parts(g, row_tasks, column_tasks);
  }
  return d;
}

// A library's order of summation can depend on the shape that it is given. So the shapes follow from the gemm
// alone: a power of two of tasks, each with enough work and a large enough part of c to run at the library's
// full rate. bf16 products are taken to be twice as fast.
static grid divide_for_library(const fsdp_gemm *g) {
  const bool is_bf16 = g->ab_dtype == FSDP_BF16;
  double results = (double)g->m * (double)g->n, flops = (is_bf16 ? 1.0 : 2.0) * results * (double)g->k;
  int64_t tasks = 1;
  if (results >= 0x1p17 && flops > 2e8) tasks = 2, results /= 2, flops /= 2;
  for (; results >= 0x1p18 && flops > 1e9; results /= 2, flops /= 2) tasks *= 2;
  return is_bf16 ? divide_bf16_for_library(g, tasks) : divide_fp32_for_library(g, tasks);
}

static void *moved(const void *data, fsdp_dtype dtype, int64_t elements) {
  return (char *)(uintptr_t)data + elements * fsdp_dtype_bytes(dtype);
}

// The part of a gemm that computes c's rows [m, m + rows) and columns [n, n + columns), cut off at c's end.
static fsdp_gemm part(const fsdp_gemm *g, int64_t m, int64_t n, int64_t rows, int64_t columns) {
  fsdp_gemm p = *g;
  p.m = fsdp_min_i64(rows, g->m - m);
  p.n = fsdp_min_i64(columns, g->n - n);
  if (g->a_rows && !g->a_transposed)
    p.a_rows += m;
  else
    p.a = moved(g->a, g->ab_dtype, g->a_transposed ? m : m * g->a_stride);
  if (g->b_rows && g->b_transposed)
    p.b_rows += n;
  else
    p.b = moved(g->b, g->ab_dtype, g->b_transposed ? n * g->b_stride : n);
  p.c = moved(g->c, g->c_dtype, m * g->c_stride + n);
  if (g->added) p.added = moved(g->added, g->c_dtype, m * g->added_stride + n);
  return p;
}

// A bf16 result of the built-in gemm: summed in fp32 and rounded once.
static void multiply_rounded(const fsdp_gemm *g, void *scratch) {
  const fsdp_cpu_isa *isa = fsdp_cpu_isa_current();
  float *sums = (float *)((char *)scratch + FSDP_PRODUCT_SCRATCH_BYTES);
  for (int64_t m = 0; m < g->m; m += SUM_ROWS)
    for (int64_t n = 0; n < g->n; n += SUM_COLUMNS) {
      fsdp_gemm p = part(g, m, n, SUM_ROWS, SUM_COLUMNS), wide = p;
      wide.c = sums;
      wide.c_dtype = FSDP_F32;
      wide.c_stride = p.n;
      for (int64_t i = 0; p.accumulate && i < p.m; i++)
        isa->convert(FSDP_BF16, moved(p.c, FSDP_BF16, i * p.c_stride), FSDP_F32, sums + i * p.n, p.n);
      isa->product(&wide, scratch);
      for (int64_t i = 0; i < p.m; i++)
        isa->convert(FSDP_F32, sums + i * p.n, FSDP_BF16, moved(p.c, FSDP_BF16, i * p.c_stride), p.n);
    }
}
_Static_assert(FSDP_PRODUCT_SCRATCH_BYTES + SUM_ROWS * SUM_COLUMNS * sizeof(float) <= FSDP_POOL_SCRATCH_BYTES,
               "a piece's sums fit beside the packed panels");

// A task's part of c is in the caches when the gemm reads it.
static void put_added(fsdp_gemm *task) {
  const size_t bytes = (size_t)(task->n * fsdp_dtype_bytes(task->c_dtype));
  for (int64_t i = 0; i < task->m; i++)
    memcpy(moved(task->c, task->c_dtype, i * task->c_stride),
           moved(task->added, task->c_dtype, i * task->added_stride), bytes);
  task->accumulate = true;
}

static void multiply_builtin(const fsdp_gemm *task, void *scratch) {
  if (task->c_dtype == FSDP_F32) {
    fsdp_cpu_isa_current()->product(task, scratch);
  } else {
    multiply_rounded(task, scratch);
  }
}

static fsdp_gemm task_of(const fsdp_gemm *g, const grid *d, int64_t index) {
  return part(g, index / d->column_tasks * d->rows, index % d->column_tasks * d->columns, d->rows,
              d->columns);
}

static void run_task(void *argument, int64_t index, void *scratch) {
  const run *r = argument;
  fsdp_gemm task = task_of(r->gemm, &r->grid, index);
  if (task.added) put_added(&task);
  bool is_whole = task.ab_dtype == FSDP_F32;
  // The library has no gemm of fp32 into bf16: gradients of fp32 parameters that are reduced in bf16.
  if (r->by_library && is_whole && task.c_dtype == FSDP_F32) {
    fsdp_gemm_library_fp32(&task);
    return;
  }
  if (r->by_library && !is_whole && fsdp_gemm_library_mixed(&task, scratch)) return;
  multiply_builtin(&task, scratch);
}

// Measured with bench_gemm on fp32: at the AVX2 and AVX-512 levels the built-in gemm matches the best library
// on one thread in the mean, and threads share it at a smaller loss (bench/results/cpu-2026-11-22.md).
static bool prefers_builtin(void) {
#ifdef FSDP_BLAS_AUTO
  return strcmp(fsdp_cpu_isa_current()->name, "base") != 0;
#else
  return false;
#endif
}

static bool uses_library(fsdp_dtype dtype) {
  if (!fsdp_gemm_library_name()) return false;
  return dtype == FSDP_F32 ? !prefers_builtin() : fsdp_gemm_native_bf16();
}

static void check(const fsdp_gemm *g) {
  FSDP_CHECK(g->m >= 0 && g->n >= 0 && g->k >= 0, "a product of %lld x %lld x %lld", (long long)g->m,
             (long long)g->n, (long long)g->k);
  FSDP_CHECK(g->ab_dtype == FSDP_F32 || g->ab_dtype == FSDP_BF16, "operands of %s",
             fsdp_dtype_name(g->ab_dtype));
  FSDP_CHECK(g->c_dtype == FSDP_F32 || g->c_dtype == FSDP_BF16, "a product stored as %s",
             fsdp_dtype_name(g->c_dtype));
  FSDP_CHECK(g->a_stride >= (g->a_transposed ? g->m : g->k) &&
                 g->b_stride >= (g->b_transposed ? g->k : g->n) && g->c_stride >= g->n,
             "strides %lld, %lld, %lld are shorter than the rows", (long long)g->a_stride,
             (long long)g->b_stride, (long long)g->c_stride);
}

void fsdp_gemm_run(fsdp_pool *pool, const fsdp_gemm *g) {
  check(g);
  FSDP_CHECK(g->k > 0 && !g->a_rows && !g->b_rows, "a product of rows that lie elsewhere");
  if (g->m == 0 || g->n == 0) return;
  run r = {.gemm = g, .by_library = uses_library(g->ab_dtype)};
  r.grid = r.by_library ? divide_for_library(g) : divide(g, fsdp_pool_thread_count(pool));
  fsdp_pool_run(pool, r.grid.row_tasks * r.grid.column_tasks, run_task, &r);
}

// ---- Gemms of one call

enum {
  GROUP_MOST = 256, // gemms under way
  GROUP_PARTS = 4,  // of a thread's share of the work that a task is at most
};

typedef struct member {
  grid grid;
  double work;
  int64_t index, end; // the gemm; the tasks up to its last one
} member;

typedef struct group_run {
  const fsdp_gemm_group *group;
  member members[GROUP_MOST];
} group_run;

static void clear(const fsdp_gemm *g) {
  for (int64_t i = 0; i < g->m && !g->accumulate; i++)
    memset(moved(g->c, g->c_dtype, i * g->c_stride), 0, (size_t)(g->n * fsdp_dtype_bytes(g->c_dtype)));
}

static void run_member_task(void *argument, int64_t index, void *scratch) {
  const group_run *r = argument;
  const member *m = r->members;
  while (m->end <= index) m++;
  const fsdp_gemm gemm = r->group->at(r->group->context, m->index);
  const fsdp_gemm task =
      task_of(&gemm, &m->grid, index - (m->end - m->grid.row_tasks * m->grid.column_tasks));
  if (task.k == 0)
    clear(&task);
  else
    multiply_builtin(&task, scratch);
}

// Those of most work first: the last tasks, for which threads wait, are small.
static int by_work(const void *left, const void *right) {
  const member *a = left, *b = right;
  if (a->work != b->work) return a->work < b->work ? 1 : -1;
  return a->index < b->index ? -1 : 1;
}

// The gemms from `first` to `end`.
static void run_members(fsdp_pool *pool, const fsdp_gemm_group *group, int64_t first, int64_t end) {
  group_run r = {.group = group};
  const int threads = fsdp_pool_thread_count(pool);
  double work = 0;
  int64_t tasks = 0;
  int count = 0;
  for (int64_t i = first; i < end; i++) {
    const fsdp_gemm g = group->at(group->context, i);
    check(&g);
    FSDP_CHECK(!g.added && fsdp_gemm_takes_rows(g.ab_dtype), "a product of a group by %s",
               fsdp_gemm_library(g.ab_dtype));
    if (g.m == 0 || g.n == 0) continue;
    r.members[count] = (member){.index = i, .work = (double)g.m * (double)g.n * (double)g.k};
    work += r.members[count++].work;
  }
  qsort(r.members, (size_t)count, sizeof *r.members, by_work);
  for (int i = 0; i < count; i++) {
    member *m = &r.members[i];
    const fsdp_gemm g = group->at(group->context, m->index);
    const double parts = work > 0 ? ceil(threads * GROUP_PARTS * m->work / work) : 1;
    m->grid = divide(&g, threads == 1 ? 1 : fsdp_max_i64(1, (int64_t)parts));
    m->end = tasks += m->grid.row_tasks * m->grid.column_tasks;
  }
  fsdp_pool_run(pool, tasks, run_member_task, &r);
}

void fsdp_gemm_run_group(fsdp_pool *pool, const fsdp_gemm_group *group) {
  for (int64_t i = 0; i < group->count; i += GROUP_MOST)
    run_members(pool, group, i, fsdp_min_i64(group->count, i + GROUP_MOST));
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
bool fsdp_gemm_library_mixed(const fsdp_gemm *gemm, void *scratch) {
  (void)gemm, (void)scratch;
  return false;
}
#endif

bool fsdp_gemm_takes_rows(fsdp_dtype dtype) {
  return !uses_library(dtype);
}

const char *fsdp_gemm_library(fsdp_dtype dtype) {
  return uses_library(dtype) ? fsdp_gemm_library_name() : "built-in";
}
