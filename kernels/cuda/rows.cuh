// The maps of kernels/row_map.h for kernels: in 32 bits, dividing by multiplication.
#pragma once

#include "kernels/cuda/ptx.cuh"
#include "kernels/operand.h"
#include "kernels/row_map.h"
#include "runtime/base/check.h"

#include <cuda_runtime.h>

// Division of numbers below 2^31 by `by`: with factor = ceil(2^shift / by), shift = 31 + ceil(log2(by)), the
// quotient is n * factor / 2^shift rounded down (Granlund and Montgomery, "Division by invariant integers
// using multiplication", 1994).
struct divisor {
  uint32_t factor;
  int shift, by;
};

inline divisor divisor_of(int64_t by) {
  FSDP_CHECK(by > 0 && by <= INT32_MAX, "division by %lld", (long long)by);
  int shift = 31;
  while ((int64_t(1) << (shift - 31)) < by) shift++;
  return {uint32_t(((uint64_t(1) << shift) + uint64_t(by) - 1) / uint64_t(by)), shift, int(by)};
}

__device__ __forceinline__ int quotient(int n, const divisor &d) {
  return int((uint64_t(uint32_t(n)) * d.factor) >> d.shift);
}

struct row_map {
  divisor batch, piece;
  int seq, chunk, first, second;
};

inline row_map row_map_of(const fsdp_row_map &map) {
  FSDP_CHECK(map.batch * map.seq <= INT32_MAX / 2 && map.first + map.seq <= INT32_MAX / 2 &&
                 map.second + map.seq <= INT32_MAX / 2,
             "%lld sequences of %lld rows, positions from %lld and from %lld on", (long long)map.batch,
             (long long)map.seq, (long long)map.first, (long long)map.second);
  return {divisor_of(map.batch > 0 ? map.batch : 1),
          divisor_of(map.piece),
          int(map.seq),
          int(map.chunk),
          int(map.first),
          int(map.second)};
}

__device__ __forceinline__ int row_of(const divisor &batch, const divisor &piece, int sequence, int index) {
  return index + (quotient(index, piece) * (batch.by - 1) + sequence) * piece.by;
}
__device__ __forceinline__ int row_of(const row_map &map, int sequence, int index) {
  return row_of(map.batch, map.piece, sequence, index);
}

// Indices from `index` on whose rows follow one another.
__device__ __forceinline__ int run_of(const row_map &map, int index) {
  return (quotient(index, map.piece) + 1) * map.piece.by - index;
}

__device__ __forceinline__ int position_of(const row_map &map, int index) {
  return index < map.chunk ? map.first + index : map.second + index - map.chunk;
}

// The index of a position, or -1.
__device__ __forceinline__ int index_of(const row_map &map, int position) {
  const int head = position - map.first, tail = position - map.second;
  if (head >= 0 && head < map.chunk) return head;
  return tail >= 0 && tail < map.seq - map.chunk ? map.chunk + tail : -1;
}

// What a row holds.
struct row_place {
  int sequence, index;
};
__device__ __forceinline__ row_place place_of(const row_map &map, int row) {
  const int piece = quotient(row, map.piece), of_sequence = quotient(piece, map.batch);
  return {piece - of_sequence * map.batch.by, of_sequence * map.piece.by + row - piece * map.piece.by};
}

// Positions that count from the start of each row's document, where documents are told apart: `by_sequence`
// starts for each sequence, one for each of its positions. NULL: they are not.
struct document_starts {
  const int *starts;
  int by_sequence;
};
inline document_starts document_starts_of(const fsdp_kernel_call *call) {
  return {fsdp_kernel_given(call, FSDP_GIVEN_BY_DOCUMENTS), int(call->attrs->documents)};
}
__device__ __forceinline__ int position_in_document(const row_map &map, const document_starts &documents,
                                                    const row_place &place) {
  const int position = position_of(map, place.index);
  if (!documents.starts) return position;
  return position -
         global_load(documents.starts + int64_t(place.sequence) * documents.by_sequence + position);
}

struct key_map {
  divisor batch, chunk, piece;
  int parts, part_rows;
};

inline key_map key_map_of(const fsdp_key_map &map) {
  FSDP_CHECK(map.batch * map.seq <= INT32_MAX / 2, "%lld sequences of %lld keys", (long long)map.batch,
             (long long)map.seq);
  return {divisor_of(map.batch > 0 ? map.batch : 1), divisor_of(map.chunk > 0 ? map.chunk : 1),
          divisor_of(map.piece), int(map.parts), int(map.batch * (map.seq / map.parts))};
}

// The index of a position in its part.
__device__ __forceinline__ int key_index(const key_map &map, int position) {
  const int chunk = quotient(position, map.chunk);
  return position - (chunk < map.parts ? chunk : chunk - 1) * map.chunk.by;
}

__device__ __forceinline__ int key_row(const key_map &map, int sequence, int position) {
  const int chunk = quotient(position, map.chunk),
            part = chunk < map.parts ? chunk : 2 * map.parts - 1 - chunk;
  return part * map.part_rows + row_of(map.batch, map.piece, sequence, key_index(map, position));
}

// Positions from `position` on whose rows follow one another.
__device__ __forceinline__ int run_of(const key_map &map, int position) {
  const int in_chunk = (quotient(position, map.chunk) + 1) * map.chunk.by - position;
  const int index = key_index(map, position),
            in_piece = (quotient(index, map.piece) + 1) * map.piece.by - index;
  return in_chunk < in_piece ? in_chunk : in_piece;
}
