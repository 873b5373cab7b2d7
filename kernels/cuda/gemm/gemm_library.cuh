// What a library of gemms does for gemm.cu, which keeps products and their algorithms: describes a product,
// names algorithms for it, times and runs them. One library is linked (gemm_cublaslt.cu).
#pragma once

#include "kernels/cuda/gemm/gemm_run.cuh"
#include "kernels/products.h"

constexpr int gemm_candidates_max = 8;

// A product as the library wants it described.
struct gemm_description;

// Scratch of FSDP_CUDA_GEMM_WORKSPACE_BYTES, or nullptr.
void gemm_library_open(void *workspace);
void gemm_library_close();
bool gemm_library_is_open();
void gemm_library_name(char *out, size_t bytes);

gemm_description *gemm_library_describe(const fsdp_product_key &key);
void gemm_library_forget(gemm_description *description);

// At most `wanted` (gemm_candidates_max), the best guess first; at least one.
int gemm_library_candidates(const gemm_description *description, const fsdp_product_key &key, int wanted,
                            fsdp_product_algorithm *out);
bool gemm_library_runs(const gemm_description *description, const fsdp_product_algorithm &algorithm);

// Milliseconds of one product; infinity if the algorithm cannot run it. One far slower than `best` ms is not
// measured well.
float gemm_library_time(const gemm_description *description, const fsdp_product_algorithm &algorithm,
                        const fsdp_cuda_gemm_run *product, float best);

void gemm_library_run(const gemm_description *description, const fsdp_product_algorithm &algorithm,
                      const fsdp_cuda_gemm_run *product, void *stream);
