// The products of a program, and the algorithm of each: noted while calls are prepared, chosen by measuring
// or from outside (kernels/products.h), found again at each launch by the shape.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/gemm/gemm_library.cuh"
#include "kernels/cuda/operand.cuh"

#include <math.h>
#include <stdlib.h>
#include <string.h>

namespace {

// An address counts as aligned to 256 bytes, or to this at most: finer steps would only make more choices.
constexpr uint32_t alignment_great = 256, alignment_usual = 16;
// A candidate replaces an earlier one only if it is clearly faster, so that most choices repeat.
constexpr float margin = 0.97f;

static_assert(sizeof(fsdp_product_key) == 6 * 8 + 2 * 4 + 8 + 4 * 4, "no padding");

// What is beside an fsdp_product, by its index.
struct product_use {
  fsdp_cuda_gemm_run run; // as noted first
  gemm_description *description;
};

struct product_list {
  fsdp_product *products; // of the shapes so far: a step has about twenty; a probe thousands
  product_use *uses;
  int count, capacity;
  int multiprocessors; // that products are cut for; 0: all
};

product_list list; // one device per process

uint32_t alignment_of(const void *address) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(address);
  if (bits % alignment_great == 0) return alignment_great;
  const uint64_t capped = bits | alignment_usual;
  return uint32_t(capped & (~capped + 1));
}

fsdp_product_key key_of(const fsdp_cuda_gemm_run *p) {
  fsdp_product_key key;
  memset(&key, 0, sizeof key);
  key.m = p->m, key.n = p->n, key.k = p->k;
  key.a_stride = p->a_stride, key.b_stride = p->b_stride, key.c_stride = p->c_stride;
  key.ab_dtype = int32_t(p->ab_dtype), key.c_dtype = int32_t(p->c_dtype);
  key.a_transposed = p->a_transposed, key.b_transposed = p->b_transposed, key.adds = p->added != nullptr;
  key.biased = p->bias != nullptr;
  key.multiprocessors = uint16_t(list.multiprocessors);
  key.alignment[FSDP_PRODUCT_A] = alignment_of(p->a), key.alignment[FSDP_PRODUCT_B] = alignment_of(p->b);
  const uint32_t of_c = alignment_of(p->c), of_added = alignment_of(p->added);
  key.alignment[FSDP_PRODUCT_C] = of_c < of_added ? of_c : of_added;
  key.alignment[FSDP_PRODUCT_BIAS] = alignment_of(p->bias);
  return key;
}

// Lowers alignments to those of `key`; whether one was higher.
bool lower(fsdp_product_key *to, const fsdp_product_key &key) {
  bool lowered = false;
  for (int i = 0; i < FSDP_PRODUCT_MATRICES; i++) {
    if (key.alignment[i] >= to->alignment[i]) continue;
    to->alignment[i] = key.alignment[i];
    lowered = true;
  }
  return lowered;
}

// The index of its shape, which is new or whose alignment it may lower: then nothing is chosen for it.
int note(const fsdp_cuda_gemm_run *run) {
  FSDP_CHECK(gemm_library_is_open(), "call fsdp_cuda_gemm_open first");
  const fsdp_product_key key = key_of(run);
  // The newest first: a probe makes one shape after the other, and times launches of the last one.
  for (int i = list.count - 1; i >= 0; i--) {
    fsdp_product *product = &list.products[i];
    if (memcmp(&product->key, &key, FSDP_PRODUCT_SHAPE_BYTES) != 0) continue;
    if (lower(&product->key, key)) {
      product->chosen = false;
      gemm_library_forget(list.uses[i].description);
      list.uses[i] = {*run, nullptr};
    }
    return i;
  }
  if (list.count == list.capacity) {
    list.capacity = 2 * list.capacity + 64;
    list.products = static_cast<fsdp_product *>(
        fsdp_realloc(list.products, size_t(list.capacity) * sizeof *list.products));
    list.uses =
        static_cast<product_use *>(fsdp_realloc(list.uses, size_t(list.capacity) * sizeof *list.uses));
  }
  list.products[list.count] = {key, {}, false};
  list.uses[list.count] = {*run, nullptr};
  return list.count++;
}

// Made once the alignments are known.
const gemm_description *description_of(int index) {
  product_use *use = &list.uses[index];
  if (!use->description) use->description = gemm_library_describe(list.products[index].key);
  return use->description;
}

// ---- The measured choice

// The number of candidates to measure: FSDP_GEMM_CANDIDATES; 1 takes the library's first.
int wanted_candidates() {
  const char *text = getenv("FSDP_GEMM_CANDIDATES");
  const int number = text ? atoi(text) : gemm_candidates_max;
  return number < 1 ? 1 : number > gemm_candidates_max ? gemm_candidates_max : number;
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
    global_store(data + i, sizeof(T) == 4 ? T(word | 0x3f000000) : T((word | 0x3f000000) >> 16));
  }
}

void fill(const matrix_span &m, const launch_stream &stream) {
  const launch_shape shape = {fsdp_min_i64((m.numel + 1023) / 1024, 4096), 1024, stream};
  if (m.dtype == FSDP_F32) {
    launch(shape, fill_random<uint32_t>, static_cast<uint32_t *>(m.data), m.numel);
  } else {
    launch(shape, fill_random<uint16_t>, static_cast<uint16_t *>(m.data), m.numel);
  }
}

// NaNs, so that a read of data not yet written yields them.
void poison(const matrix_span &m, cudaStream_t stream) {
  CUDA_CHECK(cudaMemsetAsync(m.data, 0xff, size_t(m.numel * fsdp_dtype_bytes(m.dtype)), stream));
}

// The first candidate, or a later one that is faster by the margin. Measured on random numbers: others
// report that a GPU multiplies zeros faster, and that different algorithms then win.
void measure(int index) {
  fsdp_product *product = &list.products[index];
  const fsdp_cuda_gemm_run *run = &list.uses[index].run;
  const gemm_description *description = description_of(index);
  fsdp_product_algorithm candidates[gemm_candidates_max];
  const int found = gemm_library_candidates(description, product->key, wanted_candidates(), candidates);
  const matrix_span spans[] = {
      run->a_transposed ? span_of(run->a, run->ab_dtype, run->k, run->m, run->a_stride)
                        : span_of(run->a, run->ab_dtype, run->m, run->k, run->a_stride),
      run->b_transposed ? span_of(run->b, run->ab_dtype, run->n, run->k, run->b_stride)
                        : span_of(run->b, run->ab_dtype, run->k, run->n, run->b_stride),
      span_of(run->c, run->c_dtype, run->m, run->n, run->c_stride),
      span_of(run->added ? run->added : run->c, run->c_dtype, run->m, run->n, run->c_stride),
      span_of(run->bias, run->c_dtype, 1, run->n, run->n),
  };
  const int span_count = run->bias ? 5 : 4;
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (bool prepares : {true, false}) // loaded first, like every kernel
    for (int i = 0; i < span_count; i++) fill(spans[i], {stream, prepares});
  CUDA_CHECK(cudaStreamSynchronize(stream));
  float best = INFINITY;
  product->algorithm = candidates[0];
  for (int i = 0; i < found && found > 1; i++) {
    const float ms = gemm_library_time(description, candidates[i], run, best);
    if (ms >= best * margin) continue;
    best = ms;
    product->algorithm = candidates[i];
  }
  for (int i = 0; i < span_count; i++) poison(spans[i], stream);
  CUDA_CHECK(cudaStreamSynchronize(stream));
  CUDA_CHECK(cudaStreamDestroy(stream));
  product->chosen = true;
}

void limit(int multiprocessors) {
  list.multiprocessors = multiprocessors;
}

fsdp_product *noted(int *count) {
  *count = list.count;
  return list.products;
}

bool runs(const fsdp_product *product) {
  return gemm_library_runs(description_of(int(product - list.products)), product->algorithm);
}

} // namespace

int product_multiprocessors() {
  int device, count;
  if (list.multiprocessors) return list.multiprocessors;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

extern "C" const fsdp_product_library fsdp_cuda_products = {
    gemm_library_name, wanted_candidates, limit, noted, runs, measure};

extern "C" void fsdp_cuda_gemm_open(void *workspace) {
  FSDP_CHECK(!gemm_library_is_open(), "the gemm library is already open");
  gemm_library_open(workspace);
}

extern "C" void fsdp_cuda_gemm_close(void) {
  for (int i = 0; i < list.count; i++) gemm_library_forget(list.uses[i].description);
  gemm_library_close();
  free(list.products);
  free(list.uses);
  list = {};
}

void fsdp_cuda_gemm_note(const fsdp_cuda_gemm_run *run) {
  note(run);
}

void fsdp_cuda_gemm(const fsdp_cuda_gemm_run *run, void *stream) {
  const int index = note(run);
  fsdp_product *product = &list.products[index];
  const gemm_description *description = description_of(index);
  if (!product->chosen) {
    gemm_library_candidates(description, product->key, 1, &product->algorithm);
    product->chosen = true;
  }
  gemm_library_run(description, product->algorithm, run, stream);
}
