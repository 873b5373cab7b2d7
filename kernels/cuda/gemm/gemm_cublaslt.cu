// Gemms through cuBLASLt. Its matrices are column-major, so it computes c^T (n,m) = b^T a^T: the same bytes.
// Candidates for a shape's algorithm are the first of the library's heuristic. Sums of a split gemm are fp32
// whatever the dtype of its result.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/gemm/gemm_library.cuh"
#include "kernels/cuda/operand.cuh"
#include "runtime/base/library.h"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
  f(cublasLtGetVersion);                                                                                     \
  f(cublasLtMatmul);                                                                                         \
  f(cublasLtMatmulAlgoCheck);                                                                                \
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

// ---- A product as cuBLASLt has it described

constexpr float long_ms = 10, warm_up_ms = 200;
constexpr uint64_t workspace_alignment = 256; // as cuBLAS requires

struct library {
  cublasLtHandle_t handle;
  void *workspace;
  uint64_t workspace_bytes;
  bool warm; // the GPU's clock has risen
};

library lt; // one device per process

cudaDataType_t type_of(fsdp_dtype dtype) {
  FSDP_CHECK(dtype == FSDP_F32 || dtype == FSDP_BF16, "a gemm takes fp32 and bf16, not %s",
             fsdp_dtype_name(dtype));
  return dtype == FSDP_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

// A matrix that lies row-major as (rows, columns), seen column-major as (columns, rows).
cublasLtMatrixLayout_t layout_of(fsdp_dtype dtype, int64_t rows, int64_t columns, int64_t stride) {
  cublasLtMatrixLayout_t layout;
  LT_CHECK(
      api.cublasLtMatrixLayoutCreate(&layout, type_of(dtype), uint64_t(columns), uint64_t(rows), stride));
  return layout;
}

template <class T>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t name, const T &value) {
  LT_CHECK(api.cublasLtMatmulDescSetAttribute(operation, name, &value, sizeof value));
}

// The rows of the column-major product are c's columns: a bias for each row, as the library adds it. The
// heuristic takes the pointer's alignment from its value alone; each run sets its own.
void describe_bias(cublasLtMatmulDesc_t operation, const fsdp_product_key &key) {
  set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(fsdp_dtype(key.c_dtype)));
  set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, uintptr_t(key.alignment[FSDP_PRODUCT_BIAS]));
}

cublasLtMatmulAlgo_t native(const fsdp_product_algorithm &algorithm) {
  cublasLtMatmulAlgo_t result;
  static_assert(sizeof result == sizeof algorithm, "the library's opaque words");
  memcpy(&result, &algorithm, sizeof result);
  return result;
}

} // namespace

struct gemm_description {
  cublasLtMatmulDesc_t operation;
  cublasLtMatrixLayout_t left, right, out; // of the column-major product
};

namespace {

cublasStatus_t multiply(const gemm_description *d, const cublasLtMatmulAlgo_t *algorithm,
                        const fsdp_cuda_gemm_run *product, cudaStream_t stream) {
  const float one = 1, beta = product->added ? 1 : 0;
  if (product->bias) set(d->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product->bias);
  return api.cublasLtMatmul(lt.handle, d->operation, &one, product->b, d->left, product->a, d->right, &beta,
                            product->added ? product->added : product->c, d->out, product->c, d->out,
                            algorithm, lt.workspace, lt.workspace_bytes, stream);
}

// ---- Timing

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
float time_runs(const gemm_description *d, const cublasLtMatmulAlgo_t *algorithm,
                const fsdp_cuda_gemm_run *product, const stopwatch *w, int runs) {
  CUDA_CHECK(cudaEventRecord(w->begin, w->stream));
  for (int i = 0; i < runs; i++)
    if (multiply(d, algorithm, product, w->stream) != CUBLAS_STATUS_SUCCESS) return INFINITY;
  CUDA_CHECK(cudaEventRecord(w->end, w->stream));
  CUDA_CHECK(cudaEventSynchronize(w->end));
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, w->begin, w->end));
  return ms / float(runs);
}

// An idle GPU's clock is low, and rises under load: what is measured first would seem slow.
void warm_up(const gemm_description *d, const cublasLtMatmulAlgo_t *algorithm,
             const fsdp_cuda_gemm_run *product, const stopwatch *w) {
  for (float ms = 0; ms < warm_up_ms;) {
    const float once = time_runs(d, algorithm, product, w, 1);
    const int runs = once > 1 ? 1 : 20;
    ms += fmaxf(once + float(runs) * time_runs(d, algorithm, product, w, runs), 1e-2f);
  }
}

float time_candidate(const gemm_description *d, const cublasLtMatmulAlgo_t *algorithm,
                     const fsdp_cuda_gemm_run *product, const stopwatch *w, float best) {
  if (time_runs(d, algorithm, product, w, 1) == INFINITY) return INFINITY; // loads the kernel
  if (!lt.warm) warm_up(d, algorithm, product, w);
  lt.warm = true;
  float once = time_runs(d, algorithm, product, w, 1);
  // Neither what is far slower nor what takes long is worth a repetition.
  if (once > 1.5f * best || once >= long_ms) return once;
  const int runs = once < 0.1f ? 20 : once < 1 ? 5 : 2;
  for (int i = 0; i < 2; i++) once = fminf(once, time_runs(d, algorithm, product, w, runs));
  return once;
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

void gemm_library_open(void *workspace) {
  fsdp_error error = {};
  FSDP_CHECK(fsdp_cuda_gemm_load(&error) == FSDP_OK, "%s", error.message);
  LT_CHECK(api.cublasLtCreate(&lt.handle));
  const uintptr_t skipped = -reinterpret_cast<uintptr_t>(workspace) % workspace_alignment;
  lt.workspace = static_cast<char *>(workspace) + skipped;
  lt.workspace_bytes = workspace ? FSDP_CUDA_GEMM_WORKSPACE_BYTES - skipped : 0;
}

void gemm_library_close() {
  if (lt.handle) LT_CHECK(api.cublasLtDestroy(lt.handle));
  lt = {};
}

bool gemm_library_is_open() {
  return lt.handle != nullptr;
}

void gemm_library_name(char *out, size_t bytes) {
  snprintf(out, bytes, "cuBLASLt %zu", api.cublasLtGetVersion());
}

gemm_description *gemm_library_describe(const fsdp_product_key &key) {
  auto *d = static_cast<gemm_description *>(fsdp_alloc(sizeof(gemm_description)));
  const cublasOperation_t left = key.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t right = key.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const auto ab = fsdp_dtype(key.ab_dtype), c = fsdp_dtype(key.c_dtype);
  LT_CHECK(api.cublasLtMatmulDescCreate(&d->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  if (key.multiprocessors)
    set(d->operation, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, int32_t(key.multiprocessors));
  set(d->operation, CUBLASLT_MATMUL_DESC_TRANSA, left);
  set(d->operation, CUBLASLT_MATMUL_DESC_TRANSB, right);
  if (key.biased) describe_bias(d->operation, key);
  d->left = key.b_transposed ? layout_of(ab, key.n, key.k, key.b_stride)
                             : layout_of(ab, key.k, key.n, key.b_stride);
  d->right = key.a_transposed ? layout_of(ab, key.k, key.m, key.a_stride)
                              : layout_of(ab, key.m, key.k, key.a_stride);
  d->out = layout_of(c, key.m, key.n, key.c_stride);
  return d;
}

void gemm_library_forget(gemm_description *d) {
  if (!d) return;
  LT_CHECK(api.cublasLtMatrixLayoutDestroy(d->left));
  LT_CHECK(api.cublasLtMatrixLayoutDestroy(d->right));
  LT_CHECK(api.cublasLtMatrixLayoutDestroy(d->out));
  LT_CHECK(api.cublasLtMatmulDescDestroy(d->operation));
  free(d);
}

// The heuristic's first algorithms.
int gemm_library_candidates(const gemm_description *d, const fsdp_product_key &key, int wanted,
                            fsdp_product_algorithm *out) {
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  const uint32_t *alignment = key.alignment;
  cublasLtMatmulPreference_t preference;
  cublasLtMatmulHeuristicResult_t results[gemm_candidates_max];
  LT_CHECK(api.cublasLtMatmulPreferenceCreate(&preference));
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, const void *value, size_t bytes) {
    LT_CHECK(api.cublasLtMatmulPreferenceSetAttribute(preference, name, value, bytes));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &lt.workspace_bytes, sizeof lt.workspace_bytes);
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment[FSDP_PRODUCT_B], sizeof *alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &alignment[FSDP_PRODUCT_A], sizeof *alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignment[FSDP_PRODUCT_C], sizeof *alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignment[FSDP_PRODUCT_C], sizeof *alignment);
  int found = 0, usable = 0;
  LT_CHECK(api.cublasLtMatmulAlgoGetHeuristic(lt.handle, d->operation, d->left, d->right, d->out, d->out,
                                              preference, wanted, results, &found));
  LT_CHECK(api.cublasLtMatmulPreferenceDestroy(preference));
  for (int i = 0; i < found; i++)
    if (results[i].state == CUBLAS_STATUS_SUCCESS) memcpy(&out[usable++], &results[i].algo, sizeof *out);
  FSDP_CHECK(usable > 0, "cuBLASLt has no algorithm for a gemm of %lld x %lld x %lld", (long long)key.m,
             (long long)key.n, (long long)key.k);
  return usable;
}

bool gemm_library_runs(const gemm_description *d, const fsdp_product_algorithm &algorithm) {
  const cublasLtMatmulAlgo_t algo = native(algorithm);
  cublasLtMatmulHeuristicResult_t result;
  return api.cublasLtMatmulAlgoCheck(lt.handle, d->operation, d->left, d->right, d->out, d->out, &algo,
                                     &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= lt.workspace_bytes;
}

float gemm_library_time(const gemm_description *d, const fsdp_product_algorithm &algorithm,
                        const fsdp_cuda_gemm_run *product, float best) {
  const cublasLtMatmulAlgo_t algo = native(algorithm);
  const stopwatch w = make_stopwatch();
  const float ms = time_candidate(d, &algo, product, &w, best);
  destroy_stopwatch(&w);
  return ms;
}

void gemm_library_run(const gemm_description *d, const fsdp_product_algorithm &algorithm,
                      const fsdp_cuda_gemm_run *product, void *stream) {
  const cublasLtMatmulAlgo_t algo = native(algorithm);
  LT_CHECK(multiply(d, &algo, product, static_cast<cudaStream_t>(stream)));
}
