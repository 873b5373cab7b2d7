#include "runtime/plan/mesh/rows.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

fsdp_rows fsdp_rows_of(const fsdp_mesh *mesh, int64_t batch, int64_t seq, fsdp_axis_set part_axes,
                       fsdp_axis_set piece_axes) {
  FSDP_CHECK(!(part_axes & piece_axes), "an axis cuts the sequence twice");
  fsdp_rows rows = {.batch = batch,
                    .seq = seq,
                    .parts = fsdp_mesh_group_size(mesh, part_axes),
                    .pieces = fsdp_mesh_group_size(mesh, piece_axes),
                    .part_axes = part_axes,
                    .piece_axes = piece_axes};
  if (rows.parts == 1) {
    rows.piece = (seq + rows.pieces - 1) / rows.pieces;
  } else {
    // Two chunks are whole pieces, so that no padding lies before a tail.
    int64_t least = (seq + 2 * rows.parts - 1) / (2 * rows.parts);
    rows.chunk = fsdp_round_up(least, rows.pieces % 2 ? rows.pieces : rows.pieces / 2);
    rows.piece = 2 * rows.chunk / rows.pieces;
    rows.first = fsdp_affine_of_place(mesh, part_axes, 0, rows.chunk);
    rows.second = fsdp_affine_of_place(mesh, part_axes, (2 * rows.parts - 1) * rows.chunk, -rows.chunk);
  }
  rows.local_seq = rows.pieces * rows.piece;
  return rows;
}

int64_t fsdp_rows_row(const fsdp_rows *rows, int64_t sequence, int64_t index) {
  return (index / rows->piece * rows->batch + sequence) * rows->piece + index % rows->piece;
}

int64_t fsdp_rows_position(const fsdp_rows *rows, const fsdp_mesh *mesh, int rank, int64_t index) {
  if (rows->chunk == 0 || index < rows->chunk) return fsdp_affine_at(&rows->first, mesh, rank) + index;
  return fsdp_affine_at(&rows->second, mesh, rank) + index - rows->chunk;
}
