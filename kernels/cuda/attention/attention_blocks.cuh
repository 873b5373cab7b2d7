// The blocks of attention's grids, in the order in which they start, and what each of them walks: for the
// kernels, for their launchers, and for the test that schedules them.
//
// A GPU starts blocks by x, then y. Along x lie the blocks that have the same rows of every sequence and
// head; along y those rows, the ones that walk most first, so that what starts last is short:
//   queries   from the last tile down: a query walks the keys before it, as many as its position or its
//             window
//   keys      from the first tile up: a key is walked by the queries behind it. With a window and queries of
//             some chunks alone, tiles before the first query's window have none and cost nothing; the last
//             ones are still the shortest
//
// A block of keys walks the queries of its group's heads. Where a grid would have too few blocks, the group
// is cut: each of `head_parts` blocks walks as many heads, and leaves its sums in the workspace
// (attention.cuh).
#pragma once

#include "kernels/cuda/attention/attention.cuh"

// ---- Blocks of queries

// Queries `index` to `end` - 1 and, in their order, the positions from `position` on.
struct query_range {
  int index, end, position;
};

// Tiles of ROWS queries: those of the first chunk, then those of the second. `end` is the chunk's.
template <int ROWS> __device__ __host__ inline int query_tiles(const attention_shape &s) {
  return (s.queries.chunk + ROWS - 1) / ROWS + (s.T - s.queries.chunk + ROWS - 1) / ROWS;
}
template <int ROWS> __device__ __host__ inline query_range query_tile(const attention_shape &s, int i) {
  const int head_tiles = (s.queries.chunk + ROWS - 1) / ROWS;
  if (i < head_tiles) return {i * ROWS, s.queries.chunk, s.queries.first + i * ROWS};
  const int at = (i - head_tiles) * ROWS;
  return {s.queries.chunk + at, s.T, s.queries.second + at};
}
// MAPPED: with maps of rows; else they follow one another, and positions are in order (attention_is_plain).
template <bool MAPPED, int ROWS>
__device__ __host__ inline query_range query_tile_at(const attention_shape &s, int i) {
  if constexpr (MAPPED) return query_tile<ROWS>(s, i);
  return {i * ROWS, s.T, i * ROWS};
}

struct query_block {
  int b, head, tile; // below 0: none, past the grid's last
};
template <int ROWS>
__device__ __host__ inline query_block query_block_at(const attention_shape &s, int x, int y) {
  return {x / s.H, x % s.H, query_tiles<ROWS>(s) - 1 - y};
}

// First key of the tile (of TILE keys) that holds key `low`, or the first key.
template <int TILE> __device__ __host__ inline int first_tile(int low) {
  return low <= 0 ? 0 : low / TILE * TILE;
}

// The first key of the window of the query at `position`; below 0: it holds all before the query.
__device__ __host__ inline int window_low(const attention_shape &s, int position) {
  return position - s.window + 1;
}
// The first key that the query at `position` sees, by window and document. It never decreases.
template <bool DOCUMENTS>
__device__ __forceinline__ int low_of(const attention_shape &s, int b, int position) {
  const int low = window_low(s, position);
  if constexpr (!DOCUMENTS) return low;
  const int start = start_of(s, b, position);
  return start > low ? start : low;
}

// Positions of the keys that ROWS queries of a range, of which the first sees key `low` first, walk in tiles
// of TILE.
struct key_span {
  int first, end;
};
template <int ROWS, int TILE>
__device__ __host__ inline key_span keys_before(const query_range &own, int low) {
  return {first_tile<TILE>(low), own.position + least(ROWS, own.end - own.index)};
}

// ---- Blocks of keys

struct key_block {
  int b, head, part; // of K heads, and which of the group's parts
  int first;         // key; past the last: none
};
template <int ROWS>
__device__ __host__ inline key_block key_block_at(const attention_shape &s, int head_parts, int x, int y) {
  const int head = x / head_parts;
  return {head / s.K, head % s.K, x % head_parts, y * ROWS};
}

// The walk over the tiles of queries of a block's heads that see its keys: tiles `begin` to head_end - 1 and
// `tail` to end - 1, as each chunk of the sequence has a range of them.
struct query_walk {
  int begin, head_end, tail, end;
  int tile, head, end_head;
};

struct tile_range {
  int begin, end;
};

// The position past the last query that sees some of ROWS keys from `key` on, by window and document: starts
// never decrease, and a warp looks at 32 of them at a time.
template <bool DOCUMENTS, int ROWS>
__device__ __forceinline__ int queries_end(const attention_shape &s, int b, int key) {
  const int last_key = least(key + ROWS, s.S) - 1, lane = int(threadIdx.x) % warp_lanes;
  int begin = last_key, end = least(s.S, last_key + s.window);
  while (DOCUMENTS && end - begin > 1) { // the query at `begin` sees one, that at `end` none
    const int step = (end - begin + warp_lanes - 1) / warp_lanes, position = begin + (lane + 1) * step;
    const bool sees = position < end && start_of(s, b, position) <= last_key;
    begin += __popc(__ballot_sync(whole_warp, sees)) * step;
    end = least(end, begin + step);
  }
  return end;
}

// Of tiles of ROWS queries, `count` queries at the positions from `first` on, those that hold queries from
// position `key` to past_query - 1.
template <int ROWS>
__device__ __host__ inline tile_range tiles_that_see(int first, int count, int key, int past_query) {
  const int end = least(first + count, past_query);
  if (end <= first || first + count <= key) return {0, 0};
  return {key > first ? (key - first) / ROWS : 0, (end - first + ROWS - 1) / ROWS};
}

// Of a block of keys that the queries from position past_query on do not see, in tiles of ROWS queries.
template <bool MAPPED, int ROWS>
__device__ __host__ inline query_walk walk_of(const attention_shape &s, int head_parts,
                                              const key_block &block, int past_query) {
  const int heads = s.G / head_parts, key = block.first;
  const int head = block.head * s.G + block.part * heads, end_head = head + heads;
  if constexpr (MAPPED) {
    const int head_tiles = (s.queries.chunk + ROWS - 1) / ROWS;
    const tile_range in_head = tiles_that_see<ROWS>(s.queries.first, s.queries.chunk, key, past_query);
    tile_range in_tail = tiles_that_see<ROWS>(s.queries.second, s.T - s.queries.chunk, key, past_query);
    in_tail = {in_tail.begin + head_tiles, in_tail.end + head_tiles};
    if (in_tail.begin == in_tail.end) in_tail = {in_head.end, in_head.end};
    if (in_head.begin < in_head.end)
      return {in_head.begin, in_head.end, in_tail.begin, in_tail.end, in_head.begin, head, end_head};
    // The tail alone, or nothing.
    const bool sees = in_tail.begin < in_tail.end;
    return {in_tail.begin,          in_tail.end, in_tail.end, in_tail.end, in_tail.begin,
            sees ? head : end_head, end_head};
  } else {
    const tile_range tiles = tiles_that_see<ROWS>(0, s.T, key, past_query);
    return {tiles.begin, tiles.end, tiles.end, tiles.end, tiles.begin, head, end_head};
  }
}

__device__ __host__ inline bool is_done(const query_walk &walk) {
  return walk.head >= walk.end_head;
}

template <bool MAPPED> __device__ __host__ inline void step(query_walk *walk) {
  walk->tile++;
  if (MAPPED && walk->tile == walk->head_end) walk->tile = walk->tail;
  if (walk->tile < walk->end) return;
  walk->tile = walk->begin;
  walk->head++;
}

// ---- A grid, as its launcher and the test see it

struct attention_grid {
  const char *kernel;
  int own, tile;         // rows of a block, and of the tiles that it walks
  int64_t columns, rows; // blocks along x, and along y
  int threads;
  size_t shared_bytes;
  int at_once; // blocks that a multiprocessor's registers are enough for
  // Tiles of the other side that a block walks, if documents are not told apart.
  int (*steps)(const attention_shape &s, int head_parts, int x, int y);
};

template <int ROWS, int TILE>
inline int query_block_steps(const attention_shape &s, int head_parts, int x, int y) {
  (void)head_parts;
  const query_range own = query_tile<ROWS>(s, query_block_at<ROWS>(s, x, y).tile);
  const key_span keys = keys_before<ROWS, TILE>(own, window_low(s, own.position));
  return (keys.end - keys.first + TILE - 1) / TILE;
}

template <int OWN, int ROWS>
inline int key_block_steps(const attention_shape &s, int head_parts, int x, int y) {
  const key_block block = key_block_at<OWN>(s, head_parts, x, y);
  const query_walk walk = walk_of<true, ROWS>(s, head_parts, block, block.first + OWN - 1 + s.window);
  return (walk.head_end - walk.begin + walk.end - walk.tail) * (walk.end_head - walk.head);
}

// Blocks of ROWS queries of every head, or of OWN keys of every part of a key head.
template <int ROWS, int TILE>
inline attention_grid query_grid(const char *kernel, const attention_shape &s, int threads,
                                 size_t shared_bytes, int at_once) {
  return {kernel,  ROWS,         TILE,    int64_t(s.B) * s.H,           query_tiles<ROWS>(s),
          threads, shared_bytes, at_once, query_block_steps<ROWS, TILE>};
}
template <int OWN, int ROWS>
inline attention_grid key_grid(const attention_shape &s, int head_parts, int threads, size_t shared_bytes,
                               int at_once) {
  return {"d_k d_v", OWN,          ROWS,    int64_t(s.B) * s.K * head_parts, blocks_of(s.S, OWN),
          threads,   shared_bytes, at_once, key_block_steps<OWN, ROWS>};
}

inline launch_shape launch_of(const attention_grid &grid, launch_stream stream) {
  return {grid.columns, grid.threads, stream, grid.rows, grid.shared_bytes};
}

// `at_once` is what the kernels' __launch_bounds__ ask of the compiler.
attention_grid attention_tensor_forward_grid(const attention_shape &s);
attention_grid attention_tensor_d_q_grid(const attention_shape &s);
attention_grid attention_tensor_d_k_d_v_grid(const attention_shape &s, int head_parts);
attention_grid attention_hopper_forward_grid(const attention_shape &s);
attention_grid attention_hopper_d_q_grid(const attention_shape &s);
attention_grid attention_hopper_d_k_d_v_grid(const attention_shape &s, int head_parts);
