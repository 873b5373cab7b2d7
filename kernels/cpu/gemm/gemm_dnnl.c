#include "kernels/cpu/gemm/gemm_library.h"

#include "runtime/base/check.h"

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

// The key of a gemm primitive.
typedef struct shape {
  int64_t m, n, k, a_stride, b_stride, c_stride;
  int32_t ab_dtype, c_dtype, flags, unused; // no padding: keys are compared as bytes
} shape;

// Primitives are made at the first gemm of their shape, while the first step runs, and are kept as long as
// the process.
typedef struct primitive {
  shape shape;
  dnnl_primitive_t product; // NULL: the library has none for this shape and core
  dnnl_memory_desc_t a, b, c, scratchpad;
} primitive;

enum { PRIMITIVES_MAX = 1024 };

static char name[64];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool native_bf16;
static void (*set_openmp_threads)(int); // NULL if the library was built without OpenMP
static dnnl_engine_t engine;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; // over `primitives` and `primitive_count`
static primitive primitives[PRIMITIVES_MAX];
static int primitive_count;

#define CHECK_DNNL(call)                                                                                     \
  do {                                                                                                       \
    dnnl_status_t status_of_call = (call);                                                                   \
    FSDP_CHECK(status_of_call == dnnl_success, "oneDNN returned %d", (int)status_of_call);                   \
  } while (0)

// Version 2 of the library (Debian 12) describes memory by value, version 3 (Ubuntu 24.04) by a handle, which
// here lives as long as the process.
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t description_ref;

static description_ref ref(const dnnl_memory_desc_t *d) {
  return *d;
}

static dnnl_status_t describe_strided(dnnl_memory_desc_t *d, const dnnl_dims_t dims, dnnl_data_type_t dtype,
                                      const dnnl_dims_t strides) {
  return dnnl_memory_desc_create_with_strides(d, 2, dims, dtype, strides);
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops) {
  return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}

static dnnl_status_t describe_product(dnnl_primitive_desc_t *made, const primitive *p,
                                      dnnl_primitive_attr_t attr) {
  return dnnl_matmul_primitive_desc_create(made, engine, p->a, p->b, NULL, p->c, attr);
}

static dnnl_status_t copy_description(dnnl_memory_desc_t *to, description_ref from) {
  return dnnl_memory_desc_clone(to, from);
}
#else
typedef const dnnl_memory_desc_t *description_ref;

static description_ref ref(const dnnl_memory_desc_t *d) {
  return d;
}

static dnnl_status_t describe_strided(dnnl_memory_desc_t *d, const dnnl_dims_t dims, dnnl_data_type_t dtype,
                                      const dnnl_dims_t strides) {
  return dnnl_memory_desc_init_by_strides(d, 2, dims, dtype, strides);
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops) {
  return dnnl_post_ops_append_sum(ops, 1.0f);
}

static dnnl_status_t describe_product(dnnl_primitive_desc_t *made, const primitive *p,
                                      dnnl_primitive_attr_t attr) {
  dnnl_matmul_desc_t description;
  dnnl_status_t status = dnnl_matmul_desc_init(&description, &p->a, &p->b, NULL, &p->c);
  return status == dnnl_success ? dnnl_primitive_desc_create(made, &description, attr, engine, NULL) : status;
}

static dnnl_status_t copy_description(dnnl_memory_desc_t *to, description_ref from) {
  *to = *from;
  return dnnl_success;
}
#endif

static void start(void) {
  const dnnl_version_t *version = dnnl_version();
  snprintf(name, sizeof name, "oneDNN %d.%d.%d", version->major, version->minor, version->patch);
  // The instruction sets are bit masks: each includes the bits of those that it extends.
  native_bf16 =
      (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
  CHECK_DNNL(dnnl_engine_create(&engine, dnnl_cpu, 0));
  // Looked up in the process, which has the OpenMP that the library was linked with: the compiler's may be a
  // different one.
  void *symbol = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
  memcpy(&set_openmp_threads, &symbol, sizeof symbol);
}

static void ready(void) {
  FSDP_CHECK(pthread_once(&once, start) == 0, "starting oneDNN failed");
  // The library takes its number of threads from the calling thread's OpenMP setting. The pool's threads
  // share a gemm, so each needs one. With one there is no parallel region, and no OpenMP worker is ever made.
  static _Thread_local bool single;
  if (!single && set_openmp_threads) set_openmp_threads(1);
  single = true;
}

const char *fsdp_gemm_library_name(void) {
  ready();
  return name;
}

bool fsdp_gemm_native_bf16(void) {
  ready();
  return native_bf16;
}

void fsdp_gemm_library_fp32(const fsdp_gemm *g) {
  ready();
  CHECK_DNNL(dnnl_sgemm(g->a_transposed ? 'T' : 'N', g->b_transposed ? 'T' : 'N', g->m, g->n, g->k, 1.0f,
                        g->a, g->a_stride, g->b, g->b_stride, g->accumulate ? 1.0f : 0.0f, g->c,
                        g->c_stride));
}

static dnnl_memory_desc_t describe(int64_t rows, int64_t columns, int64_t stride, bool transposed,
                                   fsdp_dtype dtype) {
  dnnl_memory_desc_t d;
  dnnl_dims_t dims = {rows, columns}, strides = {transposed ? 1 : stride, transposed ? stride : 1};
  CHECK_DNNL(describe_strided(&d, dims, dtype == FSDP_BF16 ? dnnl_bf16 : dnnl_f32, strides));
  return d;
}

// Leaves p->product NULL if the library does not support the shape.
static void make(primitive *p, const fsdp_gemm *g) {
  dnnl_primitive_attr_t attr;
  dnnl_primitive_desc_t made;
  p->a = describe(g->m, g->k, g->a_stride, g->a_transposed, g->ab_dtype);
  p->b = describe(g->k, g->n, g->b_stride, g->b_transposed, g->ab_dtype);
  p->c = describe(g->m, g->n, g->c_stride, false, g->c_dtype);
  CHECK_DNNL(dnnl_primitive_attr_create(&attr));
  // The library's own scratchpad belongs to the thread that made the primitive; ours to the one that runs it.
  CHECK_DNNL(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
  if (g->accumulate) {
    dnnl_post_ops_t sum;
    CHECK_DNNL(dnnl_post_ops_create(&sum));
    CHECK_DNNL(append_sum(sum));
    CHECK_DNNL(dnnl_primitive_attr_set_post_ops(attr, sum));
    CHECK_DNNL(dnnl_post_ops_destroy(sum));
  }
  if (describe_product(&made, p, attr) == dnnl_success) {
    CHECK_DNNL(
        copy_description(&p->scratchpad, dnnl_primitive_desc_query_md(made, dnnl_query_scratchpad_md, 0)));
    if (dnnl_memory_desc_get_size(ref(&p->scratchpad)) <= FSDP_POOL_SCRATCH_BYTES &&
        dnnl_primitive_create(&p->product, made) != dnnl_success)
      p->product = NULL;
    CHECK_DNNL(dnnl_primitive_desc_destroy(made));
  }
  CHECK_DNNL(dnnl_primitive_attr_destroy(attr));
}

// The primitive of a shape, made if it is new; NULL if there is none. Entries never move or change.
static const primitive *find(const fsdp_gemm *g) {
  shape key = {.m = g->m, .n = g->n, .k = g->k, .a_stride = g->a_stride, .b_stride = g->b_stride};
  key.c_stride = g->c_stride, key.ab_dtype = (int32_t)g->ab_dtype, key.c_dtype = (int32_t)g->c_dtype;
  key.flags = g->a_transposed | g->b_transposed << 1 | g->accumulate << 2;
  const primitive *found = NULL;
  FSDP_CHECK(pthread_mutex_lock(&mutex) == 0, "the primitives cannot be locked");
  for (int i = 0; i < primitive_count && !found; i++)
    if (memcmp(&primitives[i].shape, &key, sizeof key) == 0) found = &primitives[i];
  if (!found && primitive_count < PRIMITIVES_MAX) {
    primitive *p = &primitives[primitive_count++];
    p->shape = key;
    make(p, g);
    found = p;
  }
  pthread_mutex_unlock(&mutex);
  return found && found->product ? found : NULL;
}

bool fsdp_gemm_library_mixed(const fsdp_gemm *g, void *scratch) {
  ready();
  const primitive *p = find(g);
  if (!p) return false;
  dnnl_stream_t stream;
  dnnl_exec_arg_t arguments[4] = {
      {DNNL_ARG_SRC, NULL}, {DNNL_ARG_WEIGHTS, NULL}, {DNNL_ARG_DST, NULL}, {DNNL_ARG_SCRATCHPAD, NULL}};
  const description_ref descriptions[4] = {ref(&p->a), ref(&p->b), ref(&p->c), ref(&p->scratchpad)};
  void *data[4] = {(void *)(uintptr_t)g->a, (void *)(uintptr_t)g->b, g->c, scratch};
  for (int i = 0; i < 4; i++)
    CHECK_DNNL(dnnl_memory_create(&arguments[i].memory, descriptions[i], engine, data[i]));
  CHECK_DNNL(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
  CHECK_DNNL(dnnl_primitive_execute(p->product, stream, 4, arguments));
  CHECK_DNNL(dnnl_stream_wait(stream));
  CHECK_DNNL(dnnl_stream_destroy(stream));
  for (int i = 0; i < 4; i++) CHECK_DNNL(dnnl_memory_destroy(arguments[i].memory));
  return true;
}
