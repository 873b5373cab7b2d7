// The maps of kernels/row_map.h for kernels: in 32 bits, dividing by multiplication.
#pragma once

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
  FSDP_CHECK(map.batch * map.seq <= INT32_MAX && map.first + map.seq <= INT32_MAX &&
                 map.second + map.seq <= INT32_MAX,
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

struct key_map {
  divisor batch, chunk, piece;
  int parts, part_rows;
};

inline key_map key_map_of(const fsdp_key_map &map) {
  FSDP_CHECK(map.batch * map.seq <= INT32_MAX, "%lld sequences of %lld keys", (long long)map.batch,
             (long long)map.seq);
  return {divisor_of(map.batch > 0 ? map.batch : 1), divisor_of(map.chunk > 0 ? map.chunk : 1),
          divisor_of(map.piece), int(map.parts), int(map.batch * (map.seq / map.parts))};
}

__device__ __forceinline__ int key_row(const key_map &map, int sequence, int position) {
  const int chunk = quotient(position, map.chunk);
  const bool tail = chunk >= map.parts;
  const int part = tail ? 2 * map.parts - 1 - chunk : chunk;
  const int index = position - (tail ? chunk - 1 : chunk) * map.chunk.by;
  return part * map.part_rows + row_of(map.batch, map.piece, sequence, index);
}
