// How fast are our gemms, compared with every BLAS that this machine has?
//
//   bench_gemm [--threads N] [--rows N] [--bf16] [--seconds S]
//
// For each shape of the training steps of models of 50M to 1B parameters (forward y = x w^T, d_x = d_y w and
// d_w = d_y^T x) prints GFLOP/s of each library, given the whole gemm, and of fsdp_gemm_run, and ours over
// the best library. The libraries are opened when the program runs, so one run compares them all. Runs of
// the candidates alternate, and the best of each counts, so that a neighbour's load hits them alike.
//
// With --bf16 on one thread, ours is compared with the library that this build multiplies bf16 by. Threads
// are not bound, so that a system may leave a candidate's on one core: compare several runs.
#include "kernels/cpu/gemm/gemm.h"
#include "runtime/base/check.h"
#include "runtime/base/random.h"

#include <dlfcn.h>
#include <string.h>
#include <time.h>

enum { CANDIDATES = 4, OURS = 3 };

typedef void (*fortran_sgemm)(const char *transpose_a, const char *transpose_b, const int *m, const int *n,
                              const int *k, const float *alpha, const float *a, const int *a_stride,
                              const float *b, const int *b_stride, const float *beta, float *c,
                              const int *c_stride);
typedef int (*dnnl_sgemm_call)(char transpose_a, char transpose_b, int64_t m, int64_t n, int64_t k,
                               float alpha, const float *a, int64_t a_stride, const float *b,
                               int64_t b_stride, float beta, float *c, int64_t c_stride);

typedef struct libraries {
  fortran_sgemm openblas, blis;
  dnnl_sgemm_call dnnl;
  void *scratch; // of a whole bf16 gemm by this build's library; NULL: none is compared
  fsdp_pool *pool;
} libraries;

typedef struct options {
  int threads;
  int64_t rows;
  bool bf16;
  double seconds; // per candidate and shape
} options;

// One thread is timed by its own processor time, which does not count what neighbours take.
static double now_s(int threads) {
  struct timespec t;
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// A function of a library as a function pointer; ISO C has no cast from an object's.
static void find(const char *const *files, const char *name, const char *threads_name, int threads,
                 void *call) {
  void *library = NULL, *symbol = NULL;
  for (; *files && !library; files++) library = dlopen(*files, RTLD_NOW | RTLD_LOCAL);
  if (library) symbol = dlsym(library, name);
  memcpy(call, &symbol, sizeof symbol);
  void *setter = library ? dlsym(library, threads_name) : NULL;
  void (*set_threads)(int) = NULL;
  memcpy(&set_threads, &setter, sizeof setter);
  if (set_threads) set_threads(threads);
}

// Aligned as the tensors of a plan.
static void *aligned(size_t bytes) {
  void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  FSDP_NEED_MEMORY(memory, "%zu bytes", bytes);
  return memory;
}

static libraries open_libraries(const options *o) {
  int threads = o->threads;
  fsdp_gemm_library(FSDP_F32); // starts the build's library, which tells it to use one thread
  libraries l = {.pool = fsdp_pool_create(threads)};
  if (o->bf16) {
    if (threads == 1 && fsdp_gemm_native_bf16()) l.scratch = aligned(FSDP_POOL_SCRATCH_BYTES);
    return l;
  }
  find((const char *const[]){"libopenblas.so.0", "libopenblas.so", NULL}, "sgemm_",
       "openblas_set_num_threads", threads, &l.openblas);
  find((const char *const[]){"libblis.so.4", "libblis.so", NULL}, "sgemm_", "bli_thread_set_num_threads",
       threads, &l.blis);
  find((const char *const[]){"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so", NULL}, "dnnl_sgemm",
       "omp_set_num_threads", threads, &l.dnnl);
  return l;
}

// Row-major c = a b is column-major c^T = b^T a^T.
static void run_fortran(fortran_sgemm call, const fsdp_gemm *g) {
  int m = (int)g->n, n = (int)g->m, k = (int)g->k, a_stride = (int)g->b_stride, b_stride = (int)g->a_stride;
  int c_stride = (int)g->c_stride;
  float one = 1, beta = g->accumulate ? 1 : 0;
  call(g->b_transposed ? "T" : "N", g->a_transposed ? "T" : "N", &m, &n, &k, &one, g->b, &a_stride, g->a,
       &b_stride, &beta, g->c, &c_stride);
}

static bool run_candidate(const libraries *l, int candidate, const fsdp_gemm *g) {
  if (candidate == OURS) {
    fsdp_gemm_run(l->pool, g);
    return true;
  }
  if (candidate == 0 && l->openblas) {
    run_fortran(l->openblas, g);
  } else if (candidate == 1 && l->blis) {
    run_fortran(l->blis, g);
  } else if (candidate == 2 && l->scratch) {
    return fsdp_gemm_library_mixed(g, l->scratch);
  } else if (candidate == 2 && l->dnnl) {
    l->dnnl(g->a_transposed ? 'T' : 'N', g->b_transposed ? 'T' : 'N', g->m, g->n, g->k, 1, g->a, g->a_stride,
            g->b, g->b_stride, g->accumulate ? 1 : 0, g->c, g->c_stride);
  } else {
    return false;
  }
  return true;
}

static void *operand(int64_t count, fsdp_dtype dtype, uint64_t stream) {
  float *values = aligned((size_t)count * sizeof *values);
  fsdp_random_normal(1, stream, 0, count, 0, 1, values);
  if (dtype == FSDP_F32) return values;
  fsdp_bf16 *rounded = aligned((size_t)count * sizeof *rounded);
  for (int64_t i = 0; i < count; i++) rounded[i] = fsdp_bf16_from_f32(values[i]);
  free(values);
  return rounded;
}

// A gemm of one shape with its own operands.
static fsdp_gemm prepare(fsdp_gemm g, fsdp_dtype dtype) {
  g.ab_dtype = g.c_dtype = dtype;
  g.a = operand(g.m * g.k, dtype, 1), g.b = operand(g.k * g.n, dtype, 2), g.c = operand(g.m * g.n, dtype, 3);
  g.a_stride = g.a_transposed ? g.m : g.k, g.b_stride = g.b_transposed ? g.k : g.n, g.c_stride = g.n;
  return g;
}

static void release(fsdp_gemm *g) {
  free((void *)(uintptr_t)g->a), free((void *)(uintptr_t)g->b), free(g->c);
}

// Prints one line; returns ours over the best library, 0 if there is none.
static double compare(const libraries *l, const options *o, const char *kind, fsdp_gemm g) {
  g = prepare(g, o->bf16 ? FSDP_BF16 : FSDP_F32);
  double best_s[CANDIDATES], spent = 0, flops = 2.0 * (double)g.m * (double)g.n * (double)g.k;
  for (int i = 0; i < CANDIDATES; i++) best_s[i] = run_candidate(l, i, &g) ? 1e30 : 0; // also the warm-up
  while (spent < o->seconds * CANDIDATES)
    for (int i = 0; i < CANDIDATES; i++) {
      if (best_s[i] == 0) continue;
      double start = now_s(o->threads);
      run_candidate(l, i, &g);
      double elapsed = now_s(o->threads) - start;
      spent += elapsed;
      if (elapsed < best_s[i]) best_s[i] = elapsed;
    }
  double best_rate = 0, rates[CANDIDATES];
  for (int i = 0; i < CANDIDATES; i++) {
    rates[i] = best_s[i] > 0 ? flops / best_s[i] / 1e9 : 0;
    if (i != OURS && rates[i] > best_rate) best_rate = rates[i];
  }
  double ratio = best_rate > 0 ? rates[OURS] / best_rate : 0;
  printf("%-5s %6lld %6lld %6lld %9.1f %9.1f %9.1f %9.1f %7.2f\n", kind, (long long)g.m, (long long)g.n,
         (long long)g.k, rates[0], rates[1], rates[2], rates[OURS], ratio);
  fflush(stdout);
  release(&g);
  return ratio;
}

static options parse(int argc, char **argv) {
  options o = {.threads = 1, .rows = 1024, .seconds = 0.1};
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--bf16") == 0) {
      o.bf16 = true;
    } else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
      o.threads = atoi(argv[++i]);
    } else if (strcmp(argv[i], "--rows") == 0 && i + 1 < argc) {
      o.rows = atoll(argv[++i]);
    } else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
      o.seconds = atof(argv[++i]);
    } else {
      fprintf(stderr, "usage: bench_gemm [--threads N] [--rows N] [--bf16] [--seconds S]\n");
      exit(2);
    }
  }
  if (o.threads < 1 || o.rows < 1) {
    fprintf(stderr, "bench_gemm: --threads and --rows take positive numbers\n");
    exit(2);
  }
  return o;
}

int main(int argc, char **argv) {
  static const int64_t layers[][2] = {{512, 1536}, {512, 512},   {1536, 512},  {640, 640},    {640, 3456},
                                      {1728, 640}, {640, 16000}, {768, 2304},  {768, 768},    {768, 4096},
                                      {2048, 768}, {768, 32000}, {2048, 2560}, {2048, 11264}, {5632, 2048}};
  options o = parse(argc, argv);
  libraries l = open_libraries(&o);
  fsdp_dtype dtype = o.bf16 ? FSDP_BF16 : FSDP_F32;
  printf("# GFLOP/s in %s, ours by %s, %d threads\n", fsdp_dtype_name(dtype), fsdp_gemm_library(dtype),
         o.threads);
  printf("%-5s %6s %6s %6s %9s %9s %9s %9s %7s\n", "kind", "m", "n", "k", "OpenBLAS", "BLIS", "oneDNN",
         "ours", "ratio");
  double worst = 1e30, sum = 0;
  int count = 0;
  for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
    int64_t in = layers[i][0], out = layers[i][1],
            rows = out >= 16000 ? 256 : o.rows; // the head runs in chunks
    double ratios[3];
    ratios[0] = compare(&l, &o, "y", (fsdp_gemm){.m = rows, .n = out, .k = in, .b_transposed = true});
    ratios[1] = compare(&l, &o, "d_x", (fsdp_gemm){.m = rows, .n = in, .k = out});
    ratios[2] = compare(&l, &o, "d_w", (fsdp_gemm){.m = out, .n = in, .k = rows, .a_transposed = true});
    for (int kind = 0; kind < 3; kind++, count++) {
      sum += ratios[kind];
      if (ratios[kind] < worst) worst = ratios[kind];
    }
  }
  printf("# ours over the best library: mean %.3f, worst %.3f\n", sum / count, worst);
  fsdp_pool_destroy(l.pool);
  free(l.scratch);
  return 0;
}
