// Gemms through cuBLASLt. Its matrices are column-major, so it computes c^T (n,m) = b^T a^T: the same bytes.
// Each shape's algorithm is chosen once and kept, with its descriptors, until the library is closed: the
// fastest measured here of the first candidates of the library's heuristic. Sums of a split gemm are fp32
// whatever the dtype of its result.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/gemm/gemm.cuh"
#include "runtime/base/check.h"
#include "runtime/base/library.h"
#include "runtime/base/size.h"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CUDA_CHECK(call)                                                                                     \
  do {                                                                                                       \
    cudaError_t cuda_status = (call);                                                                        \
    FSDP_CHECK(cuda_status == cudaSuccess, "%s: %s", #call, cudaGetErrorString(cuda_status));                \
  } while (0)
#define LT_CHECK(call)                                                                                       \
  do {                                                                                                       \
    cublasStatus_t lt_status = (call);                                                                       \
    FSDP_CHECK(lt_status == CUBLAS_STATUS_SUCCESS, "%s: %s", #call, api.cublasLtGetStatusString(lt_status)); \
  } while (0)

// The library's functions that are used here.
#define LT_FUNCTIONS(f)                                                                                      \
  f(cublasLtCreate);                                                                                         \
  f(cublasLtDestroy);                                                                                        \
  f(cublasLtGetStatusString);                                                                                \
  f(cublasLtMatmul);                                                                                         \
  f(cublasLtMatmulAlgoGetHeuristic);                                                                         \
  f(cublasLtMatmulDescCreate);                                                                               \
  f(cublasLtMatmulDescDestroy);                                                                              \
  f(cublasLtMatmulDescSetAttribute);                                                                         \
  f(cublasLtMatmulPreferenceCreate);                                                                         \
  f(cublasLtMatmulPreferenceDestroy);                                                                        \
  f(cublasLtMatmulPreferenceSetAttribute);                                                                   \
  f(cublasLtMatrixLayoutCreate);                                                                             \
  f(cublasLtMatrixLayoutDestroy)

#define TEXT_OF(value)         #value
#define FILE_OF_VERSION(major) "libcublasLt.so." TEXT_OF(major)

namespace {

// ---- The library is loaded when a GPU is used

// Linked, its start alone would take 150 MB of every process, also of one that trains on the CPU.
struct functions {
#define DECLARE(name) decltype(&::name) name
  LT_FUNCTIONS(DECLARE);
#undef DECLARE
};

functions api; // null until the library is loaded

// ---- Plans

// An address counts as aligned to 256 bytes, or to this at most: finer steps would only make more plans.
constexpr uint32_t alignment_great = 256, alignment_usual = 16;
constexpr int candidates_max = 8;
// A candidate replaces an earlier one only if it is clearly faster, so that most choices repeat.
constexpr float margin = 0.97f;
constexpr float long_ms = 10;

// What an algorithm is chosen by. All of its bytes are compared, so it has no padding.
struct product_key {
  int64_t m, n, k, a_stride, b_stride, c_stride;
  int32_t ab_dtype, c_dtype;
  uint32_t a_alignment, b_alignment, c_alignment, bias_alignment; // 0: no bias
  uint8_t a_transposed, b_transposed, accumulate, unused[5];
};
static_assert(sizeof(product_key) == 6 * 8 + 2 * 4 + 4 * 4 + 8, "no padding");

struct product_plan {
  product_key key;
  cublasLtMatmulDesc_t operation;
  cublasLtMatrixLayout_t left, right, out; // of the column-major product
  cublasLtMatmulAlgo_t algorithm;
  bool measured;
};

struct library {
  cublasLtHandle_t handle;
  void *workspace; // aligned to 256 bytes, as cuBLAS requires
  uint64_t workspace_bytes;
  product_plan *plans; // of the shapes so far: a step has about twenty, times alignments; a probe thousands
  int count, capacity;
};

library lt; // one device per process

uint32_t alignment_of(const void *address) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(address);
  if (bits % alignment_great == 0) return alignment_great;
  const uint64_t capped = bits | alignment_usual;
  return uint32_t(capped & (~capped + 1));
}

cudaDataType_t type_of(fsdp_dtype dtype) {
  FSDP_CHECK(dtype == FSDP_F32 || dtype == FSDP_BF16, "a gemm takes fp32 and bf16, not %s",
             fsdp_dtype_name(dtype));
  return dtype == FSDP_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

product_key key_of(const fsdp_cuda_gemm_run *p) {
  product_key key;
  memset(&key, 0, sizeof key);
  key.m = p->m, key.n = p->n, key.k = p->k;
  key.a_stride = p->a_stride, key.b_stride = p->b_stride, key.c_stride = p->c_stride;
  key.ab_dtype = int32_t(p->ab_dtype), key.c_dtype = int32_t(p->c_dtype);
  key.a_alignment = alignment_of(p->a), key.b_alignment = alignment_of(p->b),
  key.c_alignment = alignment_of(p->c), key.bias_alignment = p->bias ? alignment_of(p->bias) : 0;
  key.a_transposed = p->a_transposed, key.b_transposed = p->b_transposed, key.accumulate = p->accumulate;
  return key;
}

// A matrix that lies row-major as (rows, columns), seen column-major as (columns, rows).
cublasLtMatrixLayout_t layout_of(fsdp_dtype dtype, int64_t rows, int64_t columns, int64_t stride) {
  cublasLtMatrixLayout_t layout;
  LT_CHECK(
      api.cublasLtMatrixLayoutCreate(&layout, type_of(dtype), uint64_t(columns), uint64_t(rows), stride));
  return layout;
}

template <class T> void set(const product_plan *plan, cublasLtMatmulDescAttributes_t name, const T &value) {
  LT_CHECK(api.cublasLtMatmulDescSetAttribute(plan->operation, name, &value, sizeof value));
}

// The rows of the column-major product are c's columns: a bias for each row, as the library adds it. The
// heuristic takes the pointer's alignment from its value alone; each run sets its own.
void describe_bias(const product_plan *plan) {
  set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  set(plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(fsdp_dtype(plan->key.c_dtype)));
  set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, uintptr_t(plan->key.bias_alignment));
}

void describe(product_plan *plan) {
  const product_key *key = &plan->key;
  const cublasOperation_t left = key->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t right = key->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const auto ab = fsdp_dtype(key->ab_dtype), c = fsdp_dtype(key->c_dtype);
  LT_CHECK(api.cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  set(plan, CUBLASLT_MATMUL_DESC_TRANSA, left);
  set(plan, CUBLASLT_MATMUL_DESC_TRANSB, right);
  if (key->bias_alignment) describe_bias(plan);
  plan->left = key->b_transposed ? layout_of(ab, key->n, key->k, key->b_stride)
                                 : layout_of(ab, key->k, key->n, key->b_stride);
  plan->right = key->a_transposed ? layout_of(ab, key->k, key->m, key->a_stride)
                                  : layout_of(ab, key->m, key->k, key->a_stride);
  plan->out = layout_of(c, key->m, key->n, key->c_stride);
}

// The heuristic's first algorithms, the best guess first; at least one.
int find_candidates(const product_plan *plan, int wanted, cublasLtMatmulHeuristicResult_t *results) {
  const product_key *key = &plan->key;
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  cublasLtMatmulPreference_t preference;
  LT_CHECK(api.cublasLtMatmulPreferenceCreate(&preference));
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, const void *value, size_t bytes) {
    LT_CHECK(api.cublasLtMatmulPreferenceSetAttribute(preference, name, value, bytes));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &lt.workspace_bytes, sizeof lt.workspace_bytes);
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &key->b_alignment, sizeof key->b_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &key->a_alignment, sizeof key->a_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &key->c_alignment, sizeof key->c_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &key->c_alignment, sizeof key->c_alignment);
  int found = 0, usable = 0;
  LT_CHECK(api.cublasLtMatmulAlgoGetHeuristic(lt.handle, plan->operation, plan->left, plan->right, plan->out,
                                              plan->out, preference, wanted, results, &found));
  LT_CHECK(api.cublasLtMatmulPreferenceDestroy(preference));
  for (int i = 0; i < found; i++)
    if (results[i].state == CUBLAS_STATUS_SUCCESS) results[usable++] = results[i];
  FSDP_CHECK(usable > 0, "cuBLASLt has no algorithm for a gemm of %lld x %lld x %lld", (long long)key->m,
             (long long)key->n, (long long)key->k);
  return usable;
}

cublasStatus_t multiply(const product_plan *plan, const cublasLtMatmulAlgo_t *algorithm,
                        const fsdp_cuda_gemm_run *product, cudaStream_t stream) {
  const float one = 1, beta = product->accumulate ? 1 : 0;
  if (product->bias) set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product->bias);
  return api.cublasLtMatmul(lt.handle, plan->operation, &one, product->b, plan->left, product->a, plan->right,
                            &beta, product->c, plan->out, product->c, plan->out, algorithm, lt.workspace,
                            lt.workspace_bytes, stream);
}

// ---- The measured choice

struct stopwatch {
  cudaStream_t stream;
  cudaEvent_t begin, end;
};

stopwatch make_stopwatch() {
  stopwatch w;
  CUDA_CHECK(cudaStreamCreateWithFlags(&w.stream, cudaStreamNonBlocking));
  CUDA_CHECK(cudaEventCreate(&w.begin));
  CUDA_CHECK(cudaEventCreate(&w.end));
  return w;
}

void destroy_stopwatch(const stopwatch *w) {
  CUDA_CHECK(cudaEventDestroy(w->begin));
  CUDA_CHECK(cudaEventDestroy(w->end));
  CUDA_CHECK(cudaStreamDestroy(w->stream));
}

// Milliseconds of one gemm; infinity if the algorithm does not support it.
float time_runs(const product_plan *plan, const cublasLtMatmulAlgo_t *algorithm,
                const fsdp_cuda_gemm_run *product, const stopwatch *w, int runs) {
  CUDA_CHECK(cudaEventRecord(w->begin, w->stream));
  for (int i = 0; i < runs; i++)
    if (multiply(plan, algorithm, product, w->stream) != CUBLAS_STATUS_SUCCESS) return INFINITY;
  CUDA_CHECK(cudaEventRecord(w->end, w->stream));
  CUDA_CHECK(cudaEventSynchronize(w->end));
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, w->begin, w->end));
  return ms / float(runs);
}

float time_candidate(const product_plan *plan, const cublasLtMatmulAlgo_t *algorithm,
                     const fsdp_cuda_gemm_run *product, const stopwatch *w, float best) {
  if (time_runs(plan, algorithm, product, w, 1) == INFINITY) return INFINITY; // loads the kernel
  float once = time_runs(plan, algorithm, product, w, 1);
  // Neither what is far slower nor what takes long is worth a repetition.
  if (once > 1.5f * best || once >= long_ms) return once;
  const int runs = once < 0.1f ? 20 : once < 1 ? 5 : 2;
  for (int i = 0; i < 2; i++) once = fminf(once, time_runs(plan, algorithm, product, w, runs));
  return once;
}

// The number of candidates to measure: FSDP_GEMM_CANDIDATES; 1 takes the heuristic's first.
int wanted_candidates() {
  const char *text = getenv("FSDP_GEMM_CANDIDATES");
  const int number = text ? atoi(text) : candidates_max;
  return number < 1 ? 1 : number > candidates_max ? candidates_max : number;
}

// A matrix from its first element to its last; columns beside a product's own lie between.
struct matrix_span {
  void *data;
  fsdp_dtype dtype;
  int64_t numel;
};

matrix_span span_of(const void *data, fsdp_dtype dtype, int64_t rows, int64_t columns, int64_t stride) {
  return {const_cast<void *>(data), dtype, (rows - 1) * stride + columns};
}

// Numbers of 0.5 to 2 with random signs and fractions: the bits of a hashed index (splitmix64).
template <class T> __global__ void fill_random(T *data, int64_t numel) {
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < numel;
       i += int64_t(gridDim.x) * blockDim.x) {
    uint64_t bits = (uint64_t(i) + 1) * 0x9e3779b97f4a7c15;
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
    const uint32_t word = uint32_t(bits >> 32) & 0x80ffffff; // sign, the exponent's last bit, fraction
    data[i] = sizeof(T) == 4 ? T(word | 0x3f000000) : T((word | 0x3f000000) >> 16);
  }
}

void fill(const matrix_span &m, cudaStream_t stream) {
  const int64_t blocks = fsdp_min_i64((m.numel + 1023) / 1024, 4096);
  if (m.dtype == FSDP_F32) {
    fill_random<<<int(blocks), 1024, 0, stream>>>(static_cast<uint32_t *>(m.data), m.numel);
  } else {
    fill_random<<<int(blocks), 1024, 0, stream>>>(static_cast<uint16_t *>(m.data), m.numel);
  }
  CUDA_CHECK(cudaGetLastError());
}

// NaNs, so that a read of data not yet written yields them.
void poison(const matrix_span &m, cudaStream_t stream) {
  CUDA_CHECK(cudaMemsetAsync(m.data, 0xff, size_t(m.numel * fsdp_dtype_bytes(m.dtype)), stream));
}

// The first candidate, or a later one that is faster by the margin. Measured on random numbers: others
// report that a GPU multiplies zeros faster, and that different algorithms then win.
void choose_by_time(product_plan *plan, const fsdp_cuda_gemm_run *product) {
  cublasLtMatmulHeuristicResult_t results[candidates_max];
  const int found = find_candidates(plan, wanted_candidates(), results);
  plan->algorithm = results[0].algo;
  plan->measured = true;
  if (found == 1) return;
  const product_key *k = &plan->key;
  const auto ab = fsdp_dtype(k->ab_dtype), c = fsdp_dtype(k->c_dtype);
  const matrix_span spans[] = {
      k->a_transposed ? span_of(product->a, ab, k->k, k->m, k->a_stride)
                      : span_of(product->a, ab, k->m, k->k, k->a_stride),
      k->b_transposed ? span_of(product->b, ab, k->n, k->k, k->b_stride)
                      : span_of(product->b, ab, k->k, k->n, k->b_stride),
      span_of(product->c, c, k->m, k->n, k->c_stride),
      span_of(product->bias, c, 1, k->n, k->n),
  };
  const int span_count = product->bias ? 4 : 3;
  const stopwatch w = make_stopwatch();
  for (int i = 0; i < span_count; i++) fill(spans[i], w.stream);
  float best = INFINITY;
  for (int i = 0; i < found; i++) {
    const float ms = time_candidate(plan, &results[i].algo, product, &w, best);
    if (ms >= best * margin) continue;
    best = ms;
    plan->algorithm = results[i].algo;
  }
  for (int i = 0; i < span_count; i++) poison(spans[i], w.stream);
  CUDA_CHECK(cudaStreamSynchronize(w.stream));
  destroy_stopwatch(&w);
}

product_plan *plan_of(const fsdp_cuda_gemm_run *product) {
  FSDP_CHECK(lt.handle, "call fsdp_cuda_gemm_open first");
  const product_key key = key_of(product);
  // The newest first: a probe makes one plan after the other, and times launches of the last one.
  for (int i = lt.count - 1; i >= 0; i--)
    if (memcmp(&lt.plans[i].key, &key, sizeof key) == 0) return &lt.plans[i];
  if (lt.count == lt.capacity) {
    lt.capacity = 2 * lt.capacity + 64;
    lt.plans = static_cast<product_plan *>(fsdp_realloc(lt.plans, size_t(lt.capacity) * sizeof *lt.plans));
  }
  product_plan *plan = &lt.plans[lt.count++];
  plan->key = key;
  plan->measured = false;
  describe(plan);
  cublasLtMatmulHeuristicResult_t first;
  find_candidates(plan, 1, &first);
  plan->algorithm = first.algo;
  return plan;
}

} // namespace

extern "C" fsdp_status fsdp_cuda_gemm_load(fsdp_error *error) {
  if (api.cublasLtCreate) return FSDP_OK;
  functions found = {};
  fsdp_library_function wanted[32];
  int count = 0;
#define WANT(name) wanted[count++] = {#name, &found.name, false}
  LT_FUNCTIONS(WANT);
#undef WANT
  char least[32];
  snprintf(least, sizeof least, "of CUDA %d.%d", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  const fsdp_library library = {"cuBLASLt",
                                FILE_OF_VERSION(CUBLAS_VER_MAJOR),
                                FSDP_CUBLASLT_FOLDER,
                                "which comes with the CUDA toolkit",
                                "use --backend cpu",
                                least,
                                wanted,
                                count};
  if (fsdp_library_load(&library, error) != FSDP_OK) return FSDP_ERR_PEER;
  api = found;
  return FSDP_OK;
}

extern "C" void fsdp_cuda_gemm_open(void *workspace) {
  fsdp_error error = {};
  FSDP_CHECK(fsdp_cuda_gemm_load(&error) == FSDP_OK, "%s", error.message);
  FSDP_CHECK(!lt.handle, "the gemm library is already open");
  LT_CHECK(api.cublasLtCreate(&lt.handle));
  const uintptr_t skipped = -reinterpret_cast<uintptr_t>(workspace) % alignment_great;
  lt.workspace = static_cast<char *>(workspace) + skipped;
  lt.workspace_bytes = workspace ? FSDP_CUDA_GEMM_WORKSPACE_BYTES - skipped : 0;
}

extern "C" void fsdp_cuda_gemm_close(void) {
  for (int i = 0; i < lt.count; i++) {
    LT_CHECK(api.cublasLtMatrixLayoutDestroy(lt.plans[i].left));
    LT_CHECK(api.cublasLtMatrixLayoutDestroy(lt.plans[i].right));
    LT_CHECK(api.cublasLtMatrixLayoutDestroy(lt.plans[i].out));
    LT_CHECK(api.cublasLtMatmulDescDestroy(lt.plans[i].operation));
  }
  if (lt.handle) LT_CHECK(api.cublasLtDestroy(lt.handle));
  free(lt.plans);
  lt = {};
}

void fsdp_cuda_gemm_prepare(const fsdp_cuda_gemm_run *product) {
  product_plan *plan = plan_of(product);
  if (!plan->measured) choose_by_time(plan, product);
}

void fsdp_cuda_gemm(const fsdp_cuda_gemm_run *product, void *stream) {
  const product_plan *plan = plan_of(product);
  LT_CHECK(multiply(plan, &plan->algorithm, product, static_cast<cudaStream_t>(stream)));
}
