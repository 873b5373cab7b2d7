// Rows of activations: where an index of a sequence lies and which position it has, and where the key of a
// position lies. models/graph/op.h has the attributes: piece, chunk, first_index, second_index, kv_*.
#pragma once

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

// Indices 0 to seq - 1 of each of `batch` sequences.
typedef struct fsdp_row_map {
  int64_t batch, seq;
  int64_t piece; // indices of a sequence whose rows follow one another; seq is whole pieces
  int64_t chunk; // indices below it have the positions from `first` on, the others from `second` on
  int64_t first, second;
} fsdp_row_map;

// Keys at positions 0 to seq - 1 of each of `batch` sequences.
typedef struct fsdp_key_map {
  int64_t batch, seq;
  int64_t parts; // one after the other; part c has chunks c and 2 parts - 1 - c, one part has all positions
  int64_t chunk; // positions
  int64_t piece; // of a part, as above
} fsdp_key_map;

// Of a call's activations. Aborts unless the rows are whole pieces and the positions are at least 0.
fsdp_row_map fsdp_row_map_of(const fsdp_kernel_call *call);

// Of a call's keys: those of its kv operand, or, for an op without one, of the rows of `queries`, which must
// have positions 0 to seq - 1 then. Aborts unless the parts are whole chunks and pieces and every query's
// position has a key.
fsdp_key_map fsdp_key_map_of(const fsdp_kernel_call *call, const fsdp_row_map *queries);

// The row of an index if all sequences' first pieces lie before their second.
static inline int64_t fsdp_row_in_pieces(int64_t batch, int64_t piece, int64_t sequence, int64_t index) {
  return (index / piece * batch + sequence) * piece + index % piece;
}

static inline int64_t fsdp_row_of(const fsdp_row_map *map, int64_t sequence, int64_t index) {
  return fsdp_row_in_pieces(map->batch, map->piece, sequence, index);
}

static inline int64_t fsdp_row_position(const fsdp_row_map *map, int64_t index) {
  return index < map->chunk ? map->first + index : map->second + index - map->chunk;
}

// The index of a position, or -1 if no index has it.
static inline int64_t fsdp_row_index(const fsdp_row_map *map, int64_t position) {
  int64_t head = position - map->first, tail = position - map->second;
  if (head >= 0 && head < map->chunk) return head;
  return tail >= 0 && tail < map->seq - map->chunk ? map->chunk + tail : -1;
}

// The positions below `limit` of chunk 0 (from `first` on) or 1 (from `second` on).
typedef struct fsdp_row_range {
  int64_t first, count;
} fsdp_row_range;
static inline fsdp_row_range fsdp_row_positions(const fsdp_row_map *map, int chunk, int64_t limit) {
  int64_t first = chunk ? map->second : map->first, count = chunk ? map->seq - map->chunk : map->chunk;
  if (first > limit) first = limit;
  fsdp_row_range range = {first, first + count < limit ? count : limit - first};
  return range;
}

// Indices from `index` on whose rows follow one another.
static inline int64_t fsdp_row_run(const fsdp_row_map *map, int64_t index) {
  return map->piece - index % map->piece;
}

// The index within its part of a position.
static inline int64_t fsdp_key_index(const fsdp_key_map *map, int64_t position) {
  int64_t tail = position / map->chunk < map->parts ? 0 : map->chunk;
  return tail + position % map->chunk;
}

static inline int64_t fsdp_key_row(const fsdp_key_map *map, int64_t sequence, int64_t position) {
  int64_t chunk = position / map->chunk, part = chunk < map->parts ? chunk : 2 * map->parts - 1 - chunk;
  int64_t index = fsdp_key_index(map, position), part_rows = map->batch * (map->seq / map->parts);
  return part * part_rows + fsdp_row_in_pieces(map->batch, map->piece, sequence, index);
}

// Positions from `position` on whose rows follow one another.
static inline int64_t fsdp_key_run(const fsdp_key_map *map, int64_t position) {
  int64_t in_chunk = map->chunk - position % map->chunk;
  int64_t in_piece = map->piece - fsdp_key_index(map, position) % map->piece;
  return in_chunk < in_piece ? in_chunk : in_piece;
}

#ifdef __cplusplus
}
#endif
