// Replaces gemm_cublaslt.cu when kernels run on the CPU: the same interface, three loops. Long sums are cut as
// a GPU's kernels cut them: one after the other, 32000 terms lose three digits.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/gemm/gemm.cuh"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace {

constexpr int64_t terms_of_sum = 256;

float load(const void *data, fsdp_dtype dtype, int64_t i) {
  return dtype == FSDP_F32 ? static_cast<const float *>(data)[i]
                           : fsdp_bf16_to_f32(static_cast<const fsdp_bf16 *>(data)[i]);
}

void store(void *data, fsdp_dtype dtype, int64_t i, float value) {
  if (dtype == FSDP_F32) {
    static_cast<float *>(data)[i] = value;
  } else {
    static_cast<fsdp_bf16 *>(data)[i] = fsdp_bf16_from_f32(value);
  }
}

// Rows of a matrix as floats, (rows, columns), whether it is stored so or transposed.
std::vector<float> unpack(const void *data, fsdp_dtype dtype, int64_t stride, bool transposed, int64_t rows,
                          int64_t columns) {
  std::vector<float> out(size_t(rows * columns));
  const int64_t last = transposed ? (columns - 1) * stride + rows : (rows - 1) * stride + columns;
  simt::memory_check(data, size_t(last * fsdp_dtype_bytes(dtype)), size_t(fsdp_dtype_bytes(dtype)));
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++)
      out[size_t(i * columns + j)] = load(data, dtype, transposed ? j * stride + i : i * stride + j);
  return out;
}

void multiply(const fsdp_cuda_gemm_run *p) {
  const std::vector<float> a = unpack(p->a, p->ab_dtype, p->a_stride, p->a_transposed, p->m, p->k);
  const std::vector<float> b = unpack(p->b, p->ab_dtype, p->b_stride, p->b_transposed, p->k, p->n);
  const int64_t last = (p->m - 1) * p->c_stride + p->n;
  simt::memory_check(p->c, size_t(last * fsdp_dtype_bytes(p->c_dtype)), size_t(fsdp_dtype_bytes(p->c_dtype)));
  std::vector<float> bias(size_t(p->n), 0.0f), row(size_t(p->n)), sums(size_t(p->n));
  if (p->bias) bias = unpack(p->bias, p->c_dtype, p->n, false, 1, p->n);
  for (int64_t i = 0; i < p->m; i++) {
    row.assign(size_t(p->n), 0.0f);
    for (int64_t first = 0; first < p->k; first += terms_of_sum) {
      sums.assign(size_t(p->n), 0.0f);
      for (int64_t q = first; q < std::min(p->k, first + terms_of_sum); q++) {
        const float x = a[size_t(i * p->k + q)], *factor = &b[size_t(q * p->n)];
        for (int64_t j = 0; j < p->n; j++) sums[size_t(j)] += x * factor[j];
      }
      for (int64_t j = 0; j < p->n; j++) row[size_t(j)] += sums[size_t(j)];
    }
    for (int64_t j = 0; j < p->n; j++) {
      const int64_t at = i * p->c_stride + j;
      const float old = p->accumulate ? load(p->c, p->c_dtype, at) : 0.0f;
      store(p->c, p->c_dtype, at, row[size_t(j)] + old + bias[size_t(j)]);
    }
  }
}

} // namespace

void fsdp_cuda_gemm(const fsdp_cuda_gemm_run *p, void *stream) {
  simt::enqueue(stream, [product = *p] {
    multiply(&product);
    return true;
  });
}

// As after the measured choice of an algorithm, the operands' memory holds NaNs.
void fsdp_cuda_gemm_prepare(const fsdp_cuda_gemm_run *p) {
  auto spoil = [](const void *data, fsdp_dtype dtype, int64_t rows, int64_t columns, int64_t stride) {
    const auto bytes = size_t(((rows - 1) * stride + columns) * fsdp_dtype_bytes(dtype));
    simt::memory_check(data, bytes, size_t(fsdp_dtype_bytes(dtype)));
    memset(const_cast<void *>(data), 0xff, bytes);
  };
  spoil(p->a, p->ab_dtype, p->a_transposed ? p->k : p->m, p->a_transposed ? p->m : p->k, p->a_stride);
  spoil(p->b, p->ab_dtype, p->b_transposed ? p->n : p->k, p->b_transposed ? p->k : p->n, p->b_stride);
  spoil(p->c, p->c_dtype, p->m, p->n, p->c_stride);
  if (p->bias) spoil(p->bias, p->c_dtype, 1, p->n, p->n);
}
extern "C" fsdp_status fsdp_cuda_gemm_load(fsdp_error *) {
  return FSDP_OK;
}
extern "C" void fsdp_cuda_gemm_open(void *) {}
extern "C" void fsdp_cuda_gemm_close(void) {}
