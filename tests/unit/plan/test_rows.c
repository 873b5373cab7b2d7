// Which position each row of a rank is, against counting: every position once, padding last, equal work.
#include "runtime/plan/mesh/rows.h"
#include "tests/support/cases.h"
#include "tests/support/random_program.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>

// The picture of rows.h.
TEST(test_picture) {
  static const int64_t positions[2][8] = {{0, 1, 6, 7}, {2, 3, 4, 5}};
  static const int64_t index_of_row[8] = {0, 1, 0, 1, 2, 3, 2, 3},
                       sequence_of_row[8] = {0, 0, 1, 1, 0, 0, 1, 1};
  fsdp_mesh mesh = fsdp_mesh_of(1, 1);
  fsdp_mesh_resize(&mesh, FSDP_AXIS_TENSOR, 2);
  fsdp_mesh_resize(&mesh, FSDP_AXIS_CONTEXT, 2);
  fsdp_axis_set context = fsdp_mesh_axes(&mesh, FSDP_AXIS_CONTEXT);
  fsdp_rows rows = fsdp_rows_of(&mesh, 2, 8, context, fsdp_mesh_axes(&mesh, FSDP_AXIS_TENSOR));
  assert_int_equal(rows.parts, 2);
  assert_int_equal(rows.pieces, 2);
  assert_int_equal(rows.chunk, 2);
  assert_int_equal(rows.piece, 2);
  assert_int_equal(rows.local_seq, 4);
  assert_int_equal(rows.part_axes, context);
  for (int row = 0; row < 8; row++)
    assert_int_equal(fsdp_rows_row(&rows, sequence_of_row[row], index_of_row[row]), row);
  for (int rank = 0; rank < 4; rank++) {
    int part = fsdp_mesh_group_of(&mesh, context, rank).rank;
    for (int index = 0; index < 4; index++)
      assert_int_equal(fsdp_rows_position(&rows, &mesh, rank, index), positions[part][index]);
  }
}

// Axes in any order; up to two that cut the sequence in parts, and two in pieces.
typedef struct drawn {
  fsdp_mesh mesh;
  fsdp_rows rows;
} drawn;

static drawn draw(random_source *random) {
  static const char *const names[] = {"data", "a", "b", "c", "tensor", "context"};
  drawn d = {0};
  fsdp_axis_set axes[3] = {0};
  int first = random_int(random, 0, 5), count = random_int(random, 0, 5);
  for (int i = 0; i < count; i++) {
    assert_true(fsdp_mesh_add(&d.mesh, names[(first + i) % 6], random_int(random, 1, 4)));
    axes[random_int(random, 0, 2)] |= 1u << i; // of nothing, of parts, of pieces
  }
  for (int i = 1; i < 3; i++) axes[i] &= fsdp_mesh_all_axes(&d.mesh);
  d.rows = fsdp_rows_of(&d.mesh, random_int(random, 1, 3), random_int(random, 1, 100), axes[1], axes[2]);
  assert_int_equal(d.rows.parts, fsdp_mesh_group_size(&d.mesh, axes[1]));
  assert_int_equal(d.rows.pieces, fsdp_mesh_group_size(&d.mesh, axes[2]));
  return d;
}

// The rows of a rank are each one index of one sequence. Piece p of all sequences is one range of rows.
static void check_rows(const fsdp_rows *rows) {
  int64_t count = rows->batch * rows->local_seq;
  char *seen = calloc((size_t)count, 1);
  assert_int_equal(rows->piece * rows->pieces, rows->local_seq);
  for (int64_t sequence = 0; sequence < rows->batch; sequence++) {
    for (int64_t index = 0; index < rows->local_seq; index++) {
      int64_t row = fsdp_rows_row(rows, sequence, index), piece = index / rows->piece;
      assert_true(row >= 0 && row < count && !seen[row]);
      assert_int_equal(row / (rows->batch * rows->piece), piece);
      seen[row] = 1;
    }
  }
  free(seen);
}

// The ranks of a group over the parts hold positions 0 to parts * local_seq - 1, each once and in order on
// each rank. As many queries as that, each with the keys up to its own, are the same work for every part.
static void check_positions(const drawn *d, int rank) {
  const fsdp_rows *rows = &d->rows;
  int64_t all = rows->parts * rows->local_seq, work_of_first = 0;
  char *held = calloc((size_t)all, 1);
  for (int part = 0; part < rows->parts; part++) {
    int64_t before = -1, work = 0;
    int member = fsdp_mesh_group_member(&d->mesh, rows->part_axes, rank, part);
    for (int64_t index = 0; index < rows->local_seq; index++) {
      int64_t position = fsdp_rows_position(rows, &d->mesh, member, index);
      assert_true(position > before && position < all && !held[position]);
      held[position] = 1;
      work += position + 1;
      before = position;
    }
    if (part == 0) work_of_first = work;
    assert_int_equal(work, work_of_first);
  }
  free(held);
}

// No position more than what makes chunks and pieces equal.
static void check_padding(const fsdp_rows *rows) {
  int64_t padding = rows->parts * rows->local_seq - rows->seq, step = rows->pieces;
  if (rows->parts > 1) step = 2 * rows->parts * (rows->pieces % 2 ? rows->pieces : rows->pieces / 2);
  assert_true(padding >= 0 && padding < step);
}

TEST(test_any) {
  for (int number = cases_begin(3000); cases_run("test_any", number); number++) {
    random_source random = {.seed = (uint64_t)number};
    drawn d = draw(&random);
    check_rows(&d.rows);
    check_padding(&d.rows);
    for (int rank = 0; rank < fsdp_mesh_ranks(&d.mesh); rank++) check_positions(&d, rank);
  }
}
