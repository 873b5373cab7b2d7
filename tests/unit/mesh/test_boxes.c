// boxes.h by example: the picture in its head.
#include "runtime/plan/mesh/boxes.h"
#include "tests/support/unit_test.h"

static void expect_box(const fsdp_box *box, int64_t row, int64_t column, int64_t rows, int64_t columns) {
  assert_int_equal(box->dims, 2);
  assert_true(box->start[0] == row && box->start[1] == column);
  assert_true(box->extent[0] == rows && box->extent[1] == columns);
}

TEST(test_a_range_of_a_matrix) {
  fsdp_box boxes[FSDP_BOXES_MAX];
  assert_int_equal(fsdp_boxes_cut(2, (int64_t[]){4, 6}, 3, 17, 0, boxes), 3);
  expect_box(&boxes[0], 0, 3, 1, 3);
  expect_box(&boxes[1], 1, 0, 2, 6);
  expect_box(&boxes[2], 3, 0, 1, 2);
  // Behind each other in the range: 3 elements, 12, and 2.
  assert_true(boxes[0].offset == 0 && boxes[1].offset == 3 && boxes[2].offset == 15);
  assert_true(fsdp_box_numel(&boxes[1]) == 12 && boxes[1].stride[0] == 6 && boxes[1].stride[1] == 1);
  assert_int_equal(fsdp_box_offset_of(&boxes[1], (int64_t[]){2, 4}), 3 + 6 + 4);
}

// A rank that holds elements 3 to 19 reads what another holds of elements 10 to 23.
TEST(test_what_two_ranges_share) {
  fsdp_box mine[FSDP_BOXES_MAX], other[FSDP_BOXES_MAX], shared;
  const int64_t shape[] = {4, 6};
  assert_int_equal(fsdp_boxes_cut(2, shape, 3, 17, 0, mine), 3);
  assert_int_equal(fsdp_boxes_cut(2, shape, 10, 14, 0, other), 2);
  expect_box(&other[0], 1, 4, 1, 2);
  expect_box(&other[1], 2, 0, 2, 6);
  assert_false(fsdp_box_intersect(&mine[0], &other[0], &shared));
  assert_true(fsdp_box_intersect(&mine[1], &other[0], &shared));
  expect_box(&shared, 1, 4, 1, 2);
  assert_int_equal(shared.offset, 3 + 4); // as it lies in mine
  assert_true(fsdp_box_intersect(&mine[2], &other[1], &shared));
  expect_box(&shared, 3, 0, 1, 2);
}
