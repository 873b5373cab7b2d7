// Matrix products: every layout, stride and dtype against sums in double, bits on any number of threads,
// nothing written beside c's own columns, and nothing read behind the last element of a and of b; groups of
// them with rows in any order.
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/gemm/gemm_library.h"
#include "kernels/cpu/isa.h"
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "tests/support/draws.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

// Memory whose last byte is that of a page, before one that cannot be read.
typedef struct guarded {
  void *pages;
  size_t bytes;
} guarded;

typedef struct product {
  fsdp_gemm gemm;
  guarded pages[2]; // of a and b
  void *a, *b, *c_start, *c;
  int64_t c_elements;
  double *expected;
} product;

// Signalling: what is not to be read must not be multiplied by zero either.
static const uint32_t poison = 0x7fa0dead;

static double value(const void *data, fsdp_dtype dtype, int64_t i) {
  return dtype == FSDP_F32 ? (double)((const float *)data)[i]
                           : (double)fsdp_bf16_to_f32(((const fsdp_bf16 *)data)[i]);
}

static void *fill(int64_t count, fsdp_dtype dtype, uint64_t stream) {
  float *drawn = fsdp_alloc((size_t)count * sizeof *drawn);
  fsdp_random_normal(3, stream, 0, count, 0, 1, drawn);
  if (dtype == FSDP_F32) return drawn;
  fsdp_bf16 *rounded = fsdp_alloc((size_t)count * sizeof *rounded);
  for (int64_t i = 0; i < count; i++) rounded[i] = fsdp_bf16_from_f32(drawn[i]);
  free(drawn);
  return rounded;
}

static void *guard(void *data, size_t bytes, guarded *g) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), most = (bytes + page - 1) / page * page;
  g->bytes = most + page;
  g->pages = mmap(NULL, g->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(g->pages != MAP_FAILED);
  assert_int_equal(mprotect((char *)g->pages + most, page, PROT_NONE), 0);
  void *at = memcpy((char *)g->pages + most - bytes, data, bytes);
  free(data);
  return at;
}

// Rows of a, b and c are `gap` longer than they need to be; if c is overwritten, all of it is poisoned first.
static product make(int64_t m, int64_t n, int64_t k, int layout, fsdp_dtype ab, fsdp_dtype c, bool accumulate,
                    int64_t gap) {
  product p = {.gemm = {.m = m, .n = n, .k = k, .ab_dtype = ab, .c_dtype = c, .accumulate = accumulate}};
  fsdp_gemm *g = &p.gemm;
  g->a_transposed = layout & 1, g->b_transposed = layout & 2;
  g->a_stride = (g->a_transposed ? m : k) + gap, g->b_stride = (g->b_transposed ? k : n) + gap,
  g->c_stride = n + gap;
  // The last row ends with its last element.
  int64_t a_elements = ((g->a_transposed ? k : m) - 1) * g->a_stride + (g->a_transposed ? m : k);
  int64_t b_elements = ((g->b_transposed ? n : k) - 1) * g->b_stride + (g->b_transposed ? k : n);
  p.c_elements = (m - 1) * g->c_stride + n;
  p.a = guard(fill(a_elements, ab, 1), (size_t)(a_elements * fsdp_dtype_bytes(ab)), &p.pages[0]);
  p.b = guard(fill(b_elements, ab, 2), (size_t)(b_elements * fsdp_dtype_bytes(ab)), &p.pages[1]);
  p.c_start = fill(p.c_elements, c, 3);
  size_t bytes = (size_t)(p.c_elements * fsdp_dtype_bytes(c));
  for (size_t i = 0; !accumulate && i + 4 <= bytes; i += 4) memcpy((char *)p.c_start + i, &poison, 4);
  if (!accumulate && bytes % 4) memcpy((char *)p.c_start + bytes - 2, &poison, 2);
  p.c = fsdp_alloc(bytes);
  p.expected = fsdp_alloc((size_t)(m * n) * sizeof(double));
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      double sum = accumulate ? value(p.c_start, c, i * g->c_stride + j) : 0;
      for (int64_t x = 0; x < k; x++)
        sum += value(p.a, ab, g->a_transposed ? x * g->a_stride + i : i * g->a_stride + x) *
               value(p.b, ab, g->b_transposed ? j * g->b_stride + x : x * g->b_stride + j);
      p.expected[i * n + j] = sum;
    }
  g->a = p.a, g->b = p.b, g->c = p.c;
  return p;
}

static void reset(product *p) {
  memcpy(p->c, p->c_start, (size_t)(p->c_elements * fsdp_dtype_bytes(p->gemm.c_dtype)));
}

static void check(const product *p) {
  const fsdp_gemm *g = &p->gemm;
  double error = 0, size = 0;
  for (int64_t i = 0; i < p->c_elements; i++) {
    int64_t row = i / g->c_stride, column = i % g->c_stride, width = fsdp_dtype_bytes(g->c_dtype);
    if (column >= g->n) { // between the rows of c
      assert_memory_equal((char *)p->c + i * width, (char *)p->c_start + i * width, (size_t)width);
      continue;
    }
    double expected = p->expected[row * g->n + column], difference = value(p->c, g->c_dtype, i) - expected;
    error += difference * difference, size += expected * expected;
  }
  // fp32 sums of up to 1100 products; a bf16 result is rounded once to 8 bits, so within 2^-9 of each value.
  double tolerance = g->c_dtype == FSDP_F32 ? 2e-6 : 2.5e-3;
  if (!(sqrt(error) <= tolerance * sqrt(size)))
    fail_msg("%lld x %lld x %lld: off by %.3g", (long long)g->m, (long long)g->n, (long long)g->k,
             sqrt(error / size));
}

static void release(product *p) {
  for (int i = 0; i < 2; i++) munmap(p->pages[i].pages, p->pages[i].bytes);
  free(p->c), free(p->c_start), free(p->expected);
}

static const int64_t shapes[][3] = {{1, 1, 1},   {1, 17, 5},   {6, 16, 8},    {7, 33, 257},
                                    {13, 1, 64}, {64, 64, 64}, {121, 70, 33}, {50, 130, 520},
                                    {480, 2, 7}, {2, 1030, 9}, {70, 35, 1100}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void check_run(product *p, fsdp_pool *const *pools, int pool_count) {
  size_t bytes = (size_t)(p->c_elements * fsdp_dtype_bytes(p->gemm.c_dtype));
  void *first = fsdp_alloc(bytes);
  for (int i = 0; i < pool_count; i++) {
    reset(p);
    fsdp_gemm_run(pools[i], &p->gemm);
    check(p);
    if (i == 0) memcpy(first, p->c, bytes);
    assert_memory_equal(p->c, first, bytes);
  }
  free(first);
}

static void run_all(fsdp_dtype ab, fsdp_dtype c) {
  fsdp_pool *pools[4];
  for (int i = 0; i < 4; i++) pools[i] = fsdp_pool_create(i + 1);
  for (int s = 0; s < SHAPES; s += test_stride(3))
    for (int layout = 0; layout < 4; layout++)
      for (int variant = 0; variant < 4; variant++) {
        product p =
            make(shapes[s][0], shapes[s][1], shapes[s][2], layout, ab, c, variant & 1, variant & 2 ? 3 : 0);
        check_run(&p, pools, 4);
        release(&p);
      }
  for (int i = 0; i < 4; i++) fsdp_pool_destroy(pools[i]);
}

// Products that several threads share: cut by columns and by rows, with ends that are not whole. The last two
// are bf16 results of which a library must not be given more than it can sum in the scratch.
TEST(test_products_in_tasks) {
  if (test_sanitized()) skip(); // the same code as above on more numbers
  static const int64_t large[][3] = {{300, 1000, 512}, {611, 500, 768}, {300, 5000, 24}, {5000, 300, 24}};
  fsdp_pool *pools[2] = {fsdp_pool_create(1), fsdp_pool_create(3)};
  for (int s = 0; s < 4; s++)
    for (int layout = 0; layout < 4; layout++) {
      const fsdp_dtype ab = s > 1 || layout >= 3 - s ? FSDP_BF16 : FSDP_F32, c = s > 1 ? FSDP_BF16 : FSDP_F32;
      product p = make(large[s][0], large[s][1], large[s][2], layout, ab, c, layout & 1, s > 1 ? 4 : 0);
      check_run(&p, pools, 2);
      release(&p);
    }
  for (int i = 0; i < 2; i++) fsdp_pool_destroy(pools[i]);
}

TEST(test_fp32) {
  run_all(FSDP_F32, FSDP_F32);
}

TEST(test_bf16_to_fp32) {
  run_all(FSDP_BF16, FSDP_F32);
}

TEST(test_bf16) {
  run_all(FSDP_BF16, FSDP_BF16);
}

TEST(test_fp32_to_bf16) {
  run_all(FSDP_F32, FSDP_BF16);
}

// The built-in product of every instruction set level, whichever product this build prefers.
TEST(test_builtin) {
  int levels;
  const fsdp_cpu_isa *const *list = fsdp_cpu_isa_list(&levels);
  void *scratch = aligned_alloc(64, FSDP_PRODUCT_SCRATCH_BYTES);
  for (int level = 0; level < levels; level++)
    for (int s = 0; s < SHAPES; s++)
      for (int layout = 0; layout < 4; layout++) {
        fsdp_dtype ab = s % 2 ? FSDP_BF16 : FSDP_F32;
        product p = make(shapes[s][0], shapes[s][1], shapes[s][2], layout, ab, FSDP_F32, layout & 1, 5);
        reset(&p);
        list[level]->product(&p.gemm, scratch);
        check(&p);
        release(&p);
      }
  free(scratch);
}

// The library of this build, although the built-in product may be preferred to it.
TEST(test_library) {
  if (!fsdp_gemm_library_name()) return;
  void *scratch = aligned_alloc(64, FSDP_POOL_SCRATCH_BYTES);
  for (int s = 0; s < SHAPES; s++)
    for (int layout = 0; layout < 4; layout++)
      for (int accumulate = 0; accumulate < 2; accumulate++) {
        product p = make(shapes[s][0], shapes[s][1], shapes[s][2], layout, FSDP_F32, FSDP_F32, accumulate, 2);
        reset(&p);
        fsdp_gemm_library_fp32(&p.gemm);
        check(&p);
        release(&p);
        // The path of native bf16 products also takes fp32, so that it is tested on every core.
        for (int dtypes = 0; dtypes < (fsdp_gemm_native_bf16() ? 3 : 1); dtypes++) {
          p = make(shapes[s][0], shapes[s][1], shapes[s][2], layout, dtypes ? FSDP_BF16 : FSDP_F32,
                   dtypes == 2 ? FSDP_BF16 : FSDP_F32, accumulate, 2);
          for (int repeat = 0; repeat < 2; repeat++) { // made, then found
            reset(&p);
            if (fsdp_gemm_library_mixed(&p.gemm, scratch)) check(&p);
          }
          release(&p);
        }
      }
  free(scratch);
}

// ---- Groups: as experts have them, rows in any order, all of one call

enum { ROWS = 97, WIDTH = 40, OTHER = 33, DIVISOR = 3 };

// Gemm e has those of `order` from ends[e - 1] on. By `of_weight` rows are summed over.
typedef struct group {
  fsdp_dtype dtype, c_dtype;
  bool of_weight, accumulate, from_b; // which of a and b has its rows elsewhere, where both have rows
  const int32_t *order;               // DIVISOR times a row, and up to DIVISOR - 1 more
  const int64_t *ends;
  void *spread, *dense, *weight, *c; // (ROWS, WIDTH), (all rows, OTHER), (OTHER, WIDTH) for each
} group;

static int64_t begin_of(const group *g, int64_t e) {
  return e ? g->ends[e - 1] : 0;
}

static void *at(void *data, fsdp_dtype dtype, int64_t i) {
  return (char *)data + i * fsdp_dtype_bytes(dtype);
}

static fsdp_gemm member_of(const void *context, int64_t e) {
  const group *g = context;
  const int64_t begin = begin_of(g, e), rows = g->ends[e] - begin;
  fsdp_gemm gemm = {
      .ab_dtype = g->dtype, .c_dtype = g->c_dtype, .divisor = DIVISOR, .accumulate = g->accumulate};
  if (!g->of_weight) { // c (rows, OTHER) = spread's rows * weight^T
    gemm.m = rows, gemm.n = OTHER, gemm.k = WIDTH;
    gemm.a = g->spread, gemm.a_stride = WIDTH, gemm.a_rows = g->order + begin;
    gemm.b = at(g->weight, g->dtype, e * OTHER * WIDTH), gemm.b_stride = WIDTH, gemm.b_transposed = true;
    gemm.c = at(g->c, g->c_dtype, begin * OTHER), gemm.c_stride = OTHER;
    return gemm;
  }
  gemm.k = rows, gemm.a_transposed = true;
  void *dense = at(g->dense, g->dtype, begin * OTHER);
  gemm.m = g->from_b ? OTHER : WIDTH, gemm.n = g->from_b ? WIDTH : OTHER;
  gemm.a = g->from_b ? dense : g->spread, gemm.b = g->from_b ? g->spread : dense;
  gemm.a_stride = gemm.m, gemm.b_stride = gemm.c_stride = gemm.n;
  if (g->from_b)
    gemm.b_rows = g->order + begin;
  else
    gemm.a_rows = g->order + begin;
  gemm.c = at(g->c, g->c_dtype, e * OTHER * WIDTH);
  return gemm;
}

// Element i of the results, in double.
static double expected_of(const group *g, int64_t count, int64_t i, const void *before) {
  double sum = g->accumulate ? value(before, g->c_dtype, i) : 0;
  if (!g->of_weight) {
    int64_t row = i / OTHER, o = i % OTHER, e = 0;
    while (g->ends[e] <= row) e++;
    for (int64_t x = 0; x < WIDTH; x++)
      sum += value(g->spread, g->dtype, g->order[row] / DIVISOR * WIDTH + x) *
             value(g->weight, g->dtype, (e * OTHER + o) * WIDTH + x);
    return sum;
  }
  const int64_t e = i / (OTHER * WIDTH), at_e = i % (OTHER * WIDTH);
  const int64_t o = g->from_b ? at_e / WIDTH : at_e % OTHER, x = g->from_b ? at_e % WIDTH : at_e / OTHER;
  assert_true(e < count);
  for (int64_t row = begin_of(g, e); row < g->ends[e]; row++)
    sum += value(g->dense, g->dtype, row * OTHER + o) *
           value(g->spread, g->dtype, g->order[row] / DIVISOR * WIDTH + x);
  return sum;
}

// Of `count` gemms; on any number of threads the same bits.
static void check_group(group *g, int64_t count) {
  const int64_t elements = g->of_weight ? count * OTHER * WIDTH : g->ends[count - 1] * OTHER;
  const size_t bytes = (size_t)(elements * fsdp_dtype_bytes(g->c_dtype));
  void *before = fill(elements, g->c_dtype, 6), *first = fsdp_alloc(bytes);
  g->c = fsdp_alloc(bytes);
  for (int threads = 1; threads <= 4; threads++) {
    fsdp_pool *pool = fsdp_pool_create(threads);
    memcpy(g->c, before, bytes);
    fsdp_gemm_run_group(pool, &(fsdp_gemm_group){.count = count, .at = member_of, .context = g});
    fsdp_pool_destroy(pool);
    if (threads == 1) memcpy(first, g->c, bytes);
    assert_memory_equal(first, g->c, bytes);
  }
  double error = 0, size = 0;
  for (int64_t i = 0; i < elements; i++) {
    const double expected = expected_of(g, count, i, before), off = value(g->c, g->c_dtype, i) - expected;
    error += off * off, size += expected * expected;
  }
  assert_true(sqrt(error) <= (g->c_dtype == FSDP_F32 ? 2e-6 : 2.5e-3) * sqrt(size));
  free(before), free(first), free(g->c);
}

// Gemm 1 has more than all others, 2 none, and there are more than a call has under way.
TEST(test_groups) {
  enum { COUNT = 300 };
  int64_t ends[COUNT], rows = 0;
  for (int e = 0; e < COUNT; e++) ends[e] = rows += e == 1 ? 700 : e == 2 ? 0 : 1 + e % 3;
  int32_t *order = fsdp_alloc((size_t)rows * sizeof *order);
  for (int64_t i = 0; i < rows; i++) order[i] = (int32_t)(i * 7919 % (ROWS * DIVISOR));
  for (int d = 0; d < 3; d++) {
    const fsdp_dtype dtype = d ? FSDP_BF16 : FSDP_F32, c_dtype = d == 2 ? FSDP_BF16 : FSDP_F32;
    if (!fsdp_gemm_takes_rows(dtype)) continue;
    group g = {.dtype = dtype, .c_dtype = c_dtype, .order = order, .ends = ends};
    g.spread = fill(ROWS * WIDTH, dtype, 3), g.dense = fill(rows * OTHER, dtype, 4);
    g.weight = fill((int64_t)COUNT * OTHER * WIDTH, dtype, 5);
    for (int variant = 0; variant < 6; variant++) {
      g.of_weight = variant > 1, g.from_b = variant > 3, g.accumulate = variant & 1;
      check_group(&g, test_sanitized() ? 9 : COUNT);
    }
    free(g.spread), free(g.dense), free(g.weight);
  }
  free(order);
}

TEST(test_names) {
  assert_string_equal(fsdp_gemm_library(FSDP_BF16),
                      fsdp_gemm_native_bf16() ? fsdp_gemm_library_name() : "built-in");
  assert_true(strlen(fsdp_gemm_library(FSDP_F32)) > 0);
}
