// Matrix products through cuBLASLt. Its matrices are column-major, so c^T (n,m) = b^T a^T is what it
// computes: the same bytes. An algorithm is chosen once per shape and kept, with its descriptors, until the
// library is closed.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/gemm.cuh"
#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <string.h>

#define LT_CHECK(call)                                                                                       \
  do {                                                                                                       \
    cublasStatus_t lt_status = (call);                                                                       \
    FSDP_CHECK(lt_status == CUBLAS_STATUS_SUCCESS, "%s: %s", #call, cublasLtGetStatusString(lt_status));     \
  } while (0)

namespace {

constexpr int plans_max = 256; // shapes of a program; a step of Llama has about twenty
constexpr uint32_t alignment_max = 256;

// What an algorithm is chosen by. All of its bytes are compared, so it has no padding.
struct product_key {
  int64_t m, n, k, a_stride, b_stride, c_stride;
  int32_t ab_dtype, c_dtype;
  uint32_t a_alignment, b_alignment, c_alignment;
  uint8_t a_transposed, b_transposed, accumulate, unused;
};
static_assert(sizeof(product_key) == 6 * 8 + 2 * 4 + 3 * 4 + 4, "no padding");

struct product_plan {
  product_key key;
  cublasLtMatmulDesc_t operation;
  cublasLtMatrixLayout_t left, right, out; // of the column-major product
  cublasLtMatmulAlgo_t algorithm;
};

struct library {
  cublasLtHandle_t handle;
  void *workspace;
  product_plan plans[plans_max];
  int count;
};

library lt; // one device a process

uint32_t alignment_of(const void *address) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(address) | alignment_max;
  return uint32_t(bits & (~bits + 1));
}

cudaDataType_t type_of(fsdp_dtype dtype) {
  FSDP_CHECK(dtype == FSDP_F32 || dtype == FSDP_BF16, "products take fp32 and bf16, not %s",
             fsdp_dtype_name(dtype));
  return dtype == FSDP_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

product_key key_of(const fsdp_cuda_product *p) {
  product_key key;
  memset(&key, 0, sizeof key);
  key.m = p->m, key.n = p->n, key.k = p->k;
  key.a_stride = p->a_stride, key.b_stride = p->b_stride, key.c_stride = p->c_stride;
  key.ab_dtype = int32_t(p->ab_dtype), key.c_dtype = int32_t(p->c_dtype);
  key.a_alignment = alignment_of(p->a), key.b_alignment = alignment_of(p->b),
  key.c_alignment = alignment_of(p->c);
  key.a_transposed = p->a_transposed, key.b_transposed = p->b_transposed, key.accumulate = p->accumulate;
  return key;
}

// A matrix that lies row-major as (rows, columns), seen column-major as (columns, rows).
cublasLtMatrixLayout_t layout_of(fsdp_dtype dtype, int64_t rows, int64_t columns, int64_t stride) {
  cublasLtMatrixLayout_t layout;
  LT_CHECK(cublasLtMatrixLayoutCreate(&layout, type_of(dtype), uint64_t(columns), uint64_t(rows), stride));
  return layout;
}

void describe(product_plan *plan) {
  const product_key *key = &plan->key;
  const cublasOperation_t left = key->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t right = key->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const auto ab = fsdp_dtype(key->ab_dtype), c = fsdp_dtype(key->c_dtype);
  LT_CHECK(cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  LT_CHECK(cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_TRANSA, &left, sizeof left));
  LT_CHECK(
      cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_TRANSB, &right, sizeof right));
  plan->left = key->b_transposed ? layout_of(ab, key->n, key->k, key->b_stride)
                                 : layout_of(ab, key->k, key->n, key->b_stride);
  plan->right = key->a_transposed ? layout_of(ab, key->k, key->m, key->a_stride)
                                  : layout_of(ab, key->m, key->k, key->a_stride);
  plan->out = layout_of(c, key->m, key->n, key->c_stride);
}

void choose(product_plan *plan) {
  const product_key *key = &plan->key;
  const uint64_t workspace_bytes = FSDP_CUDA_GEMM_WORKSPACE_BYTES;
  cublasLtMatmulPreference_t preference;
  LT_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, const void *value, size_t bytes) {
    LT_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, name, value, bytes));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, sizeof workspace_bytes);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &key->b_alignment, sizeof key->b_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &key->a_alignment, sizeof key->a_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &key->c_alignment, sizeof key->c_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &key->c_alignment, sizeof key->c_alignment);
  cublasLtMatmulHeuristicResult_t result;
  int found = 0;
  LT_CHECK(cublasLtMatmulAlgoGetHeuristic(lt.handle, plan->operation, plan->left, plan->right, plan->out,
                                          plan->out, preference, 1, &result, &found));
  FSDP_CHECK(found == 1, "cuBLASLt has no algorithm for a product of %lld x %lld x %lld", (long long)key->m,
             (long long)key->n, (long long)key->k);
  plan->algorithm = result.algo;
  LT_CHECK(cublasLtMatmulPreferenceDestroy(preference));
}

const product_plan *plan_of(const fsdp_cuda_product *product) {
  FSDP_CHECK(lt.handle, "fsdp_cuda_gemm_open comes first");
  const product_key key = key_of(product);
  for (int i = 0; i < lt.count; i++)
    if (memcmp(&lt.plans[i].key, &key, sizeof key) == 0) return &lt.plans[i];
  FSDP_CHECK(lt.count < plans_max, "more than %d shapes of matrix products", plans_max);
  product_plan *plan = &lt.plans[lt.count++];
  plan->key = key;
  describe(plan);
  choose(plan);
  return plan;
}

} // namespace

extern "C" void fsdp_cuda_gemm_open(void *workspace) {
  FSDP_CHECK(!lt.handle, "the library of matrix products is open already");
  LT_CHECK(cublasLtCreate(&lt.handle));
  lt.workspace = workspace;
}

extern "C" void fsdp_cuda_gemm_close(void) {
  for (int i = 0; i < lt.count; i++) {
    LT_CHECK(cublasLtMatrixLayoutDestroy(lt.plans[i].left));
    LT_CHECK(cublasLtMatrixLayoutDestroy(lt.plans[i].right));
    LT_CHECK(cublasLtMatrixLayoutDestroy(lt.plans[i].out));
    LT_CHECK(cublasLtMatmulDescDestroy(lt.plans[i].operation));
  }
  if (lt.handle) LT_CHECK(cublasLtDestroy(lt.handle));
  lt.handle = nullptr;
  lt.count = 0;
}

void fsdp_cuda_gemm_prepare(const fsdp_cuda_product *product) {
  plan_of(product);
}

void fsdp_cuda_gemm(const fsdp_cuda_product *product, void *stream) {
  const product_plan *plan = plan_of(product);
  const float one = 1, beta = product->accumulate ? 1 : 0;
  LT_CHECK(cublasLtMatmul(lt.handle, plan->operation, &one, product->b, plan->left, product->a, plan->right,
                          &beta, product->c, plan->out, product->c, plan->out, &plan->algorithm, lt.workspace,
                          FSDP_CUDA_GEMM_WORKSPACE_BYTES, static_cast<cudaStream_t>(stream)));
}
