// Strategies of operators: over which axes of the mesh their letters are cut, as users give them and as
// propagation finds them, and what moving a tensor costs.
#pragma once

#include "runtime/plan/mesh/mesh.h"
#include "runtime/plan/sharding/dataflow.h"

#define FSDP_SLICE_AXES_MAX 20 // factors of FSDP_MESH_RANKS_MAX

// The axes that counts take, in their order, without those of size 1.
typedef struct fsdp_slice_mesh {
  int count, sizes[FSDP_SLICE_AXES_MAX];
  int axis[FSDP_SLICE_AXES_MAX]; // index in the mesh that they come from; -1: none
} fsdp_slice_mesh;

// The prime factors of `ranks`, ascending.
fsdp_slice_mesh fsdp_slice_mesh_of_ranks(int ranks);
fsdp_slice_mesh fsdp_slice_mesh_of(const fsdp_mesh *mesh);
// A set of its axes as a set of those that they come from, and the other way round.
fsdp_axis_set fsdp_slice_axes(const fsdp_slice_mesh *mesh, fsdp_axis_set axes);
fsdp_axis_set fsdp_slice_axes_of(const fsdp_slice_mesh *mesh, fsdp_axis_set axes);
// Ranks over a set of its axes.
int64_t fsdp_slices(const fsdp_slice_mesh *mesh, fsdp_axis_set axes);

// Where a tensor lies: by dimension, the axes that cut it, in the mesh's order.
typedef struct fsdp_tensor_axes {
  fsdp_axis_set dim[FSDP_MAX_DIMS];
} fsdp_tensor_axes;

// Items, and bytes of a tensor, that a rank holds; parts are rounded up.
int64_t fsdp_slice_share(int64_t size, int64_t slices);
int64_t fsdp_part_bytes(const fsdp_operator_tensor *tensor, const fsdp_slice_mesh *mesh,
                        const fsdp_tensor_axes *axes);

// Bytes that the rank which receives most receives where a tensor goes from one placement to another.
int64_t fsdp_redistribution_bytes(const fsdp_operator_tensor *tensor, const fsdp_slice_mesh *mesh,
                                  const fsdp_tensor_axes *from, const fsdp_tensor_axes *to);
// The same of its gradient, which goes back: it lies as `to`, and over `partial` ranks have summands of it.
// Over those of these axes that cut `from` a rank receives all summands of its part; over the others it is
// summed where it lies, as without a redistribution. 0 for a tensor that no operator makes.
int64_t fsdp_gradient_bytes(const fsdp_operator_tensor *tensor, const fsdp_slice_mesh *mesh,
                            const fsdp_tensor_axes *from, const fsdp_tensor_axes *to, fsdp_axis_set partial);

// ---- What users give

// "4@2": 4 slices, of which neighbours lie 2 ranks apart. Whatever the axes are called, these are the
// neighbouring ones of 4 ranks in all that have 2 ranks behind them.
typedef struct fsdp_slice_group {
  int count, stride;
} fsdp_slice_group;

#define FSDP_SLICE_GROUPS_MAX (FSDP_SLICE_AXES_MAX / 2)

// One line. Counts beyond the arrays are counted, but not kept.
typedef struct fsdp_given_strategy {
  char name[FSDP_NAME_BYTES + 1]; // PATH, PATH.kind; a part `*` is any integer (names.h)
  int list_count, entry_count[FSDP_OPERATOR_LISTS];
  int counts[FSDP_OPERATOR_LISTS][FSDP_MAX_DIMS];
  // Of a count that says over which ranks, "2@4+2@1": the groups, whose product it is. 0: the first axes.
  int group_count[FSDP_OPERATOR_LISTS][FSDP_MAX_DIMS];
  fsdp_slice_group groups[FSDP_OPERATOR_LISTS][FSDP_MAX_DIMS][FSDP_SLICE_GROUPS_MAX];
  char place[FSDP_STRATEGY_PLACE]; // for messages: "two.yaml:3"
} fsdp_given_strategy;

typedef struct fsdp_given_strategies {
  fsdp_given_strategy *items; // each name once
  int count;
  char place[FSDP_STRATEGY_PLACE]; // the file
} fsdp_given_strategies;

// ---- What comes out

typedef enum fsdp_decision {
  FSDP_UNDECIDED,
  FSDP_DECIDED_GIVEN,
  FSDP_DECIDED_FORWARD,
  FSDP_DECIDED_BACKWARD,
  FSDP_DECIDED_DEFAULT
} fsdp_decision;

typedef struct fsdp_operator_strategy {
  fsdp_op_strategy axes;
  fsdp_decision decision;
  int from; // the neighbour that a forward or backward decision came from, or the given line; else -1
  const char *place;  // of the line that gives it, for messages: "two.yaml:3"; not owned; NULL: not given
  bool redistributes; // no candidate suited all neighbours
} fsdp_operator_strategy;

// Allowed axes per letter; the last entry is the set of axes that may leave every letter whole.
typedef struct fsdp_operator_limits {
  fsdp_axis_set letters[FSDP_OPERATOR_LETTERS + 1];
  // For the axes `followed`, masks of letters, compared with the first input that is made by an operator:
  //   must_match_input   an axis cuts the letter if and only if it cuts it there; any, while that input is
  //                      undecided
  //   may_match_input    an axis cuts the letter only if it cuts it there; none, while that is undecided
  //   cut_where_whole    of may_match_input: an axis over which that input is whole must cut one of them
  fsdp_axis_set followed;
  unsigned must_match_input, may_match_input, cut_where_whole;
} fsdp_operator_limits;

// An operator input that must be redistributed.
typedef struct fsdp_moved_input {
  int tensor, reader, operand;
  int64_t forward_bytes, backward_bytes; // that a rank receives, the latter of the gradient
} fsdp_moved_input;

typedef struct fsdp_propagation {
  const fsdp_dataflow *flow; // that it is of
  fsdp_dataflow *own_flow;   // the same if it is destroyed with this, else NULL
  fsdp_slice_mesh mesh;
  fsdp_operator_strategy *operators; // by operator of the dataflow
  fsdp_moved_input *moved;           // in the order of readers
  int moved_count;
  int64_t forward_bytes, backward_bytes; // of all of them
} fsdp_propagation;

// The axes of an operator's letter by its index.
static inline fsdp_axis_set fsdp_operator_axes(const fsdp_operator *op,
                                               const fsdp_operator_strategy *strategy, int letter) {
  return fsdp_strategy_axes(&strategy->axes, op->letters[letter].name);
}
// Where a strategy puts an operand.
fsdp_tensor_axes fsdp_operand_axes(const fsdp_operator *op, int operand,
                                   const fsdp_operator_strategy *strategy);
// The axes of letters that an operand lacks: over these an output, or an input's gradient, is a sum.
fsdp_axis_set fsdp_operand_partial(const fsdp_operator *op, int operand,
                                   const fsdp_operator_strategy *strategy);
// Bytes that a rank receives of what the operator gathers inside; in the backward as many, of its gradient.
int64_t fsdp_gathered_bytes(const fsdp_dataflow *flow, const fsdp_slice_mesh *mesh, const fsdp_operator *op,
                            const fsdp_operator_strategy *strategy);

// Gives letters the first axes, in the mesh's order, that make their counts, of those that are not `used`:
// adds them to `axes`, by letter. False: there are none.
bool fsdp_slices_take_axes(const fsdp_slice_mesh *mesh, const int64_t *counts, int letter_count,
                           fsdp_axis_set used, fsdp_axis_set *axes);

// The axes of a group; false: the mesh has none that make it.
bool fsdp_slice_group_axes(const fsdp_slice_mesh *mesh, fsdp_slice_group group, fsdp_axis_set *axes);

// The slice counts of an operator's inputs, "[[2, 4], [4]]", with one count for the rows of a model if they
// are cut by batch alone; with their ranks, "[[4@1]]", if counts alone would be read as other axes. Returns
// `out`.
#define FSDP_SLICES_TEXT 2048
const char *fsdp_slices_print(const fsdp_propagation *propagation, int op, char out[FSDP_SLICES_TEXT]);
