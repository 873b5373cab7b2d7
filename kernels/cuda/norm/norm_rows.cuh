// Rows of norms: a block has a row of C channels, and a thread of it CHUNKS vectors, which lie a block apart.
#pragma once

#include "kernels/cuda/operand.cuh"

template <int WIDTH> __device__ __forceinline__ int column_of(int chunk) {
  return (chunk * int(blockDim.x) + int(threadIdx.x)) * WIDTH;
}

// This thread's columns of a row, as they lie in memory.
template <class T, int WIDTH, int CHUNKS>
__device__ __forceinline__ void load_row(const T *source, int64_t C, packed<T, WIDTH> (&row)[CHUNKS]) {
#pragma unroll
  for (int k = 0; k < CHUNKS; k++) {
    const int c = column_of<WIDTH>(k);
    if (c >= C) break;
    load_packed(source + c, &row[k]);
  }
}

// A block's threads.
template <int WIDTH, int CHUNKS> inline int64_t row_threads(int64_t C) {
  const int64_t vectors = blocks_of(C, WIDTH);
  return fsdp_max_i64(fsdp_min_i64(256, fsdp_round_up(vectors, warp_lanes)),
                      fsdp_round_up(blocks_of(vectors, CHUNKS), warp_lanes));
}
