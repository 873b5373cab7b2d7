// Boxes: which elements of which parameter lie in a range of a unit's flat buffer. By this one rule a rank
// loads, saves, hashes, exports, draws and rounds what it holds.
//
//   a matrix, 4 x 6                     the range of elements 3 to 20 as boxes in the matrix's coordinates
//   | .  .  .  3  4  5 |    box 0: start (0,3) extent (1,3)
//   | 6  7  8  9 10 11 |    box 1: start (1,0) extent (2,6)
//   |12 13 14 15 16 17 |
//   |18 19  .  .  .  . |    box 2: start (3,0) extent (1,2)
//
// A step in dimension d is `stride[d]` elements in the range, so a box may be part of something wider. In the
// last dimension elements are neighbours.
//
// The flat buffer holds the rank's piece of each parameter. Of a parameter that tensor parallelism cuts
// (cut.h), a box in the piece becomes one for each run of the cut dimension, in coordinates of the whole
// parameter; padding has none. So a rank's element is known by parameter and index, wherever it lies.
#pragma once

#include "runtime/plan/mesh/cut.h"
#include "runtime/plan/mesh/units.h"

// Of one range of elements.
#define FSDP_BOXES_MAX (2 * FSDP_MAX_DIMS - 1)

typedef struct fsdp_box {
  int param; // the caller's number
  int dims;
  int64_t start[FSDP_MAX_DIMS], extent[FSDP_MAX_DIMS]; // in the whole parameter
  int64_t offset;                                      // of its first element, in the range
  int64_t stride[FSDP_MAX_DIMS];                       // in the range; 1 in the last dimension
} fsdp_box;

// A run of elements that are neighbours in the parameter (flattened row-major) and in the range.
typedef struct fsdp_shard_run {
  int param;
  int64_t element_index; // first element, in the parameter
  int64_t shard_offset;  // where it lies in the range
  int64_t numel;
} fsdp_shard_run;

// Cuts elements [first, first + numel) of a tensor of `shape`, flattened row-major, into boxes in order;
// element `first` lies at `offset` of the range. Returns their number.
int fsdp_boxes_cut(int dims, const int64_t *shape, int64_t first, int64_t numel, int64_t offset,
                   fsdp_box boxes[FSDP_BOXES_MAX]);

// Elements of a box.
int64_t fsdp_box_numel(const fsdp_box *box);

// What two boxes of one tensor share, as `a` lies in its range; false if they share nothing.
bool fsdp_box_intersect(const fsdp_box *a, const fsdp_box *b, fsdp_box *shared);

// Where element `at` (coordinates in the whole parameter) of a box lies in the range.
int64_t fsdp_box_offset_of(const fsdp_box *box, const int64_t *at);

typedef struct fsdp_box_list {
  fsdp_box *boxes; // owned
  int count, capacity;
} fsdp_box_list;

// Frees the boxes and empties the list.
void fsdp_box_list_free(fsdp_box_list *list);

// A rank's piece of a parameter.
typedef struct fsdp_piece {
  int param; // the caller's number
  int dims;
  const int64_t *shape; // whole
  const fsdp_cut *cut;  // nothing cut: the whole parameter
  const fsdp_mesh *mesh;
  int rank;
} fsdp_piece;

// Appends the boxes of elements [first, first + numel) of the piece, flattened row-major; element `first`
// lies at `offset` of the range.
void fsdp_piece_boxes(const fsdp_piece *piece, int64_t first, int64_t numel, int64_t offset,
                      fsdp_box_list *list);

// Elements [first, first + numel) of the flat buffer that `rank` has of a unit.
typedef struct fsdp_unit_range {
  int unit, rank;
  int64_t first, numel;
} fsdp_unit_range;

// Appends the boxes of a range, in the order of parameters.
void fsdp_units_boxes(const fsdp_units *units, const fsdp_graph *graph, const fsdp_unit_range *range,
                      fsdp_box_list *list);

// The runs of a range, as few as possible, in the order of the range. The caller frees them.
fsdp_shard_run *fsdp_units_runs(const fsdp_units *units, const fsdp_graph *graph,
                                const fsdp_unit_range *range, int *count);

// The runs of the shard of `rank`.
fsdp_shard_run *fsdp_units_shard_runs(const fsdp_units *units, const fsdp_graph *graph, int unit, int rank,
                                      int *count);
