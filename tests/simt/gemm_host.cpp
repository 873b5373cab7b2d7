// Replaces gemm_cublaslt.cu when kernels run on the CPU: the same interface, three loops. Long sums are cut as
// a GPU's kernels cut them: one after the other, 32000 terms lose three digits. Its algorithms differ in where,
// so in their results' last bits. Settings, from the environment:
//
//   FSDP_SIMT_GEMM_FASTEST  the algorithm, 0 to 2, that takes half of the others' time (0)
//   FSDP_SIMT_GEMM_VERSION  of the library (1)
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/gemm/gemm_library.cuh"
#include "runtime/base/check.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr int algorithm_count = 3;
constexpr uint64_t terms_of_sum[algorithm_count] = {256, 128, 16}, algorithm_mark = 0x73696d7400;

// -1 for none of ours.
int index_of(const fsdp_product_algorithm &algorithm) {
  const uint64_t index = algorithm.words[0] - algorithm_mark;
  return index < algorithm_count && algorithm.words[1] == terms_of_sum[index] ? int(index) : -1;
}

int64_t terms_of(const fsdp_product_algorithm &algorithm) {
  FSDP_CHECK(index_of(algorithm) >= 0, "an algorithm that is not of this library");
  return int64_t(algorithm.words[1]);
}

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

// In sums of so many terms.
void multiply(const fsdp_cuda_gemm_run *p, int64_t terms) {
  const std::vector<float> a = unpack(p->a, p->ab_dtype, p->a_stride, p->a_transposed, p->m, p->k);
  const std::vector<float> b = unpack(p->b, p->ab_dtype, p->b_stride, p->b_transposed, p->k, p->n);
  const int64_t last = (p->m - 1) * p->c_stride + p->n;
  for (const void *data : {static_cast<const void *>(p->c), p->added})
    if (data)
      simt::memory_check(data, size_t(last * fsdp_dtype_bytes(p->c_dtype)), size_t(fsdp_dtype_bytes(p->c_dtype)));
  std::vector<float> bias(size_t(p->n), 0.0f), row(size_t(p->n)), sums(size_t(p->n));
  if (p->bias) bias = unpack(p->bias, p->c_dtype, p->n, false, 1, p->n);
  for (int64_t i = 0; i < p->m; i++) {
    row.assign(size_t(p->n), 0.0f);
    for (int64_t first = 0; first < p->k; first += terms) {
      sums.assign(size_t(p->n), 0.0f);
      for (int64_t q = first; q < std::min(p->k, first + terms); q++) {
        const float x = a[size_t(i * p->k + q)], *factor = &b[size_t(q * p->n)];
        for (int64_t j = 0; j < p->n; j++) sums[size_t(j)] += x * factor[j];
      }
      for (int64_t j = 0; j < p->n; j++) row[size_t(j)] += sums[size_t(j)];
    }
    for (int64_t j = 0; j < p->n; j++) {
      const int64_t at = i * p->c_stride + j;
      const float old = p->added ? load(p->added, p->c_dtype, at) : 0.0f;
      store(p->c, p->c_dtype, at, row[size_t(j)] + old + bias[size_t(j)]);
    }
  }
}

} // namespace

struct gemm_description {
  fsdp_product_key key;
};

namespace {

bool is_open;

int setting(const char *name, int otherwise) {
  const char *text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

} // namespace

void gemm_library_open(void *) {
  is_open = true;
}

void gemm_library_close() {
  is_open = false;
}

bool gemm_library_is_open() {
  return is_open;
}

void gemm_library_name(char *out, size_t bytes) {
  snprintf(out, bytes, "emulated gemms %d", setting("FSDP_SIMT_GEMM_VERSION", 1));
}

gemm_description *gemm_library_describe(const fsdp_product_key &key) {
  return new gemm_description{key};
}

void gemm_library_forget(gemm_description *description) {
  delete description;
}

int gemm_library_candidates(const gemm_description *, const fsdp_product_key &, int wanted,
                            fsdp_product_algorithm *out) {
  const int found = std::min(wanted, algorithm_count);
  for (int i = 0; i < found; i++) out[i] = {{algorithm_mark + uint64_t(i), terms_of_sum[i]}};
  return found;
}

bool gemm_library_runs(const gemm_description *, const fsdp_product_algorithm &algorithm) {
  return index_of(algorithm) >= 0;
}

float gemm_library_time(const gemm_description *, const fsdp_product_algorithm &algorithm,
                        const fsdp_cuda_gemm_run *product, float) {
  multiply(product, terms_of(algorithm));
  return index_of(algorithm) == setting("FSDP_SIMT_GEMM_FASTEST", 0) ? 1 : 2;
}

void gemm_library_run(const gemm_description *, const fsdp_product_algorithm &algorithm,
                      const fsdp_cuda_gemm_run *p, void *stream) {
  simt::enqueue(stream, [product = *p, terms = terms_of(algorithm)] {
    multiply(&product, terms);
    return true;
  });
}

extern "C" fsdp_status fsdp_cuda_gemm_load(fsdp_error *) {
  return FSDP_OK;
}
