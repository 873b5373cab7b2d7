// Which queries a block of keys meets in attention's backward.
#pragma once

#include "kernels/cuda/attention/attention.cuh"

// The walk over the tiles of queries of the group's heads that see a block of keys: tiles `begin` to
// head_end - 1 and `tail` to end - 1, as each chunk of the sequence has a range of them.
struct query_walk {
  int begin, head_end, tail, end;
  int tile, head, end_head;
};

struct tile_range {
  int begin, end;
};

// Of tiles of ROWS queries, `count` queries at the positions from `first` on, those that see some of the keys
// `key` to `last_key`.
template <int ROWS>
__device__ __forceinline__ tile_range tiles_that_see(const attention_shape &s, int first, int count, int key,
                                                     int last_key) {
  const int end = least(first + count, last_key + s.window);
  if (end <= first || first + count <= key) return {0, 0};
  return {key > first ? (key - first) / ROWS : 0, (end - first + ROWS - 1) / ROWS};
}

template <bool MAPPED, int ROWS>
__device__ __forceinline__ query_walk walk_of(const attention_shape &s, int kv_head, int key, int last_key) {
  const int head = kv_head * s.G, end_head = head + s.G;
  if constexpr (MAPPED) {
    const int head_tiles = (s.queries.chunk + ROWS - 1) / ROWS;
    const tile_range in_head = tiles_that_see<ROWS>(s, s.queries.first, s.queries.chunk, key, last_key);
    tile_range in_tail = tiles_that_see<ROWS>(s, s.queries.second, s.T - s.queries.chunk, key, last_key);
    in_tail = {in_tail.begin + head_tiles, in_tail.end + head_tiles};
    if (in_tail.begin == in_tail.end) in_tail = {in_head.end, in_head.end};
    if (in_head.begin < in_head.end)
      return {in_head.begin, in_head.end, in_tail.begin, in_tail.end, in_head.begin, head, end_head};
    // The tail alone, or nothing.
    const bool sees = in_tail.begin < in_tail.end;
    return {in_tail.begin,          in_tail.end, in_tail.end, in_tail.end, in_tail.begin,
            sees ? head : end_head, end_head};
  } else {
    const tile_range tiles = tiles_that_see<ROWS>(s, 0, s.T, key, last_key);
    return {tiles.begin, tiles.end, tiles.end, tiles.end, tiles.begin, head, end_head};
  }
}

__device__ __forceinline__ bool is_done(const query_walk &walk) {
  return walk.head >= walk.end_head;
}

template <bool MAPPED> __device__ __forceinline__ void step(query_walk *walk) {
  walk->tile++;
  if (MAPPED && walk->tile == walk->head_end) walk->tile = walk->tail;
  if (walk->tile < walk->end) return;
  walk->tile = walk->begin;
  walk->head++;
}
