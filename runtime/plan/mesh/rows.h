// Rows: which position of which sequence each row of a rank's activations belongs to.
//
//   2 sequences of 8 positions, context 2 (parts), tensor 2 (pieces), chunk 2
//                         part 0: chunks 0 and 3        part 1: chunks 1 and 2
//   sequence 0            0 1 | 6 7                     2 3 | 4 5
//   sequence 1            0 1 | 6 7                     2 3 | 4 5
//   rows of part 0        0 1  0 1 | 6 7  6 7           piece 0 of both sequences, then piece 1 of both
//
// Context parallelism gives each rank a chunk of the sequence's head and the mirrored one of its tail, so
// that causal work is balanced. Sequence parallelism cuts what a rank has into pieces, one a rank: all
// sequences' first pieces come before their second, so a piece is one range of rows, and gathering pieces
// moves none. Sequences are padded at their end, in positions that no real one sees.
#pragma once

#include "runtime/plan/mesh/mesh.h"

typedef struct fsdp_rows {
  int64_t batch, seq;        // sequences; positions of each, without padding
  int64_t parts, pieces;     // ranks of a group over the axes that cut the sequence, and its parts
  int64_t chunk;             // positions of a chunk; 0: one part, in order
  int64_t piece;             // rows of one sequence in one piece
  int64_t local_seq;         // rows of one sequence on a rank: pieces * piece
  fsdp_axis_set part_axes;   // that cut the sequence everywhere
  fsdp_axis_set piece_axes;  // that cut the rows of some ops
  fsdp_affine first, second; // first positions of the head chunk (or of all) and of the tail chunk
} fsdp_rows;

// `part_axes` cut the sequence in chunks, `piece_axes` cut each part in pieces. Either may be empty.
fsdp_rows fsdp_rows_of(const fsdp_mesh *mesh, int64_t batch, int64_t seq, fsdp_axis_set part_axes,
                       fsdp_axis_set piece_axes);

// The row of index `index` (0 to local_seq - 1) of sequence `sequence` on a rank.
int64_t fsdp_rows_row(const fsdp_rows *rows, int64_t sequence, int64_t index);

// The position of that index on `rank`; `seq` or more: padding.
int64_t fsdp_rows_position(const fsdp_rows *rows, const fsdp_mesh *mesh, int rank, int64_t index);
