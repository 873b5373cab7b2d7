// The node list against an array, and its definitions and uses against a search through all operands.
#include "runtime/plan/program/nodes.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>
#include <string.h>

enum { NODES_MAX = 60, TENSORS = 7, UNITS = 3 };

static fsdp_list_node node_of(int mark) {
  fsdp_list_node node = {.origin = mark};
  return node;
}

// The marks of the list's nodes, forwards; checks that it reads the same backwards.
static int marks_of(const fsdp_nodes *list, int *marks) {
  int count = 0, back = 0;
  for (int n = list->first; n != FSDP_NO_NODE; n = list->nodes[n].next)
    marks[count++] = list->nodes[n].origin;
  for (int n = list->last; n != FSDP_NO_NODE; n = list->nodes[n].previous)
    assert_int_equal(list->nodes[n].origin, marks[count - 1 - back++]);
  assert_int_equal(back, count);
  return count;
}

// Random insertions and removals, on the list and on an array of marks.
TEST(test_edits_against_an_array) {
  srand(3);
  for (int round = 0; round < 200; round++) {
    fsdp_nodes list = {0};
    fsdp_nodes_clear(&list);
    int expected[NODES_MAX], found[NODES_MAX], index_of[NODES_MAX], count = 0;
    for (int edit = 0; edit < NODES_MAX; edit++) {
      int at = rand() % (count + 1);
      if (count > 0 && rand() % 4 == 0) {
        at = rand() % count;
        list.cursor = FSDP_NO_NODE;
        fsdp_nodes_remove(&list, index_of[expected[at]]);
        memmove(expected + at, expected + at + 1, (size_t)(--count - at) * sizeof *expected);
        continue;
      }
      list.cursor = at == count ? FSDP_NO_NODE : index_of[expected[at]];
      fsdp_list_node node = node_of(edit);
      index_of[edit] = fsdp_nodes_insert(&list, &node);
      memmove(expected + at + 1, expected + at, (size_t)(count++ - at) * sizeof *expected);
      expected[at] = edit;
    }
    assert_int_equal(marks_of(&list, found), count);
    assert_memory_equal(found, expected, (size_t)count * sizeof *expected);
    fsdp_nodes_release(&list);
  }
}

TEST(test_insertions_keep_their_order_at_the_cursor) {
  fsdp_nodes list = {0};
  fsdp_nodes_clear(&list);
  for (int mark = 0; mark < 3; mark++) fsdp_nodes_insert(&list, &(fsdp_list_node){.origin = mark});
  list.cursor = 1;
  for (int mark = 10; mark < 13; mark++) fsdp_nodes_insert(&list, &(fsdp_list_node){.origin = mark});
  int marks[NODES_MAX];
  assert_int_equal(marks_of(&list, marks), 6);
  assert_memory_equal(marks, ((int[]){0, 10, 11, 12, 1, 2}), 6 * sizeof *marks);
  fsdp_nodes_release(&list);
}

TEST(test_an_origin_ends_where_another_begins) {
  fsdp_nodes list = {0};
  fsdp_nodes_clear(&list);
  const int origins[] = {-1, 4, 4, 5, 5};
  for (int i = 0; i < 5; i++) fsdp_nodes_insert(&list, &(fsdp_list_node){.origin = origins[i]});
  assert_int_equal(fsdp_nodes_after_origin(&list, 0), 1);
  assert_int_equal(fsdp_nodes_after_origin(&list, 1), 3);
  assert_int_equal(fsdp_nodes_after_origin(&list, 2), 3);
  assert_int_equal(fsdp_nodes_after_origin(&list, 3), FSDP_NO_NODE);
  fsdp_nodes_release(&list);
}

TEST(test_units_in_place_of_tensors) {
  for (int u = 0; u < 1000; u++) {
    assert_int_equal(fsdp_weights_unit(FSDP_UNIT_WEIGHTS(u)), u);
    assert_int_equal(fsdp_gradient_unit(FSDP_UNIT_GRADIENT(u)), u);
    assert_int_equal(fsdp_weights_unit(FSDP_UNIT_GRADIENT(u)), -1);
    assert_int_equal(fsdp_gradient_unit(FSDP_UNIT_WEIGHTS(u)), -1);
    assert_int_equal(fsdp_weights_unit(u), -1);
    assert_int_equal(fsdp_gradient_unit(u), -1);
  }
  assert_int_equal(fsdp_weights_unit(-1), -1);
  assert_int_equal(fsdp_gradient_unit(-1), -1);
}

// A random list, some of its nodes inserted in the middle.
static void random_list(fsdp_nodes *list) {
  fsdp_nodes_clear(list);
  int count = rand() % NODES_MAX;
  for (int i = 0; i < count; i++) {
    fsdp_list_node node = {.operand_count = rand() % (FSDP_OP_MAX_OPERANDS + 1)};
    for (int o = 0; o < node.operand_count; o++) {
      int unit = rand() % UNITS;
      node.operands[o].access = (fsdp_access)(1 + rand() % 3);
      node.operands[o].tensor = rand() % 3 == 0   ? FSDP_UNIT_WEIGHTS(unit)
                                : rand() % 3 == 0 ? FSDP_UNIT_GRADIENT(unit)
                                                  : rand() % TENSORS;
    }
    list->cursor = list->count && rand() % 2 ? rand() % list->count : FSDP_NO_NODE;
    fsdp_nodes_insert(list, &node);
  }
}

// Every use of `tensor` in the order of the list, found one by one.
static void check_uses(const fsdp_nodes *list, const fsdp_uses *uses, int tensor) {
  int count, seen = 0, definition = FSDP_NO_NODE;
  const fsdp_use *use = fsdp_uses_of(uses, tensor, &count);
  for (int n = list->first; n != FSDP_NO_NODE; n = list->nodes[n].next) {
    for (int o = 0; o < list->nodes[n].operand_count; o++) {
      const fsdp_operand *operand = &list->nodes[n].operands[o];
      if (operand->tensor != tensor) continue;
      assert_true(seen < count);
      assert_int_equal(use[seen].node, n);
      assert_int_equal(use[seen++].operand, o);
      if (definition == FSDP_NO_NODE && operand->access != FSDP_READ) definition = n;
    }
  }
  assert_int_equal(seen, count);
  assert_int_equal(fsdp_uses_definition(uses, list, tensor), definition);
}

TEST(test_uses_against_a_search) {
  srand(5);
  fsdp_nodes list = {0};
  for (int round = 0; round < 300; round++) {
    random_list(&list);
    fsdp_uses uses = fsdp_uses_create(&list, TENSORS, UNITS);
    for (int t = 0; t < TENSORS; t++) check_uses(&list, &uses, t);
    for (int u = 0; u < UNITS; u++) {
      check_uses(&list, &uses, FSDP_UNIT_WEIGHTS(u));
      check_uses(&list, &uses, FSDP_UNIT_GRADIENT(u));
    }
    fsdp_uses_release(&uses);
  }
  fsdp_nodes_release(&list);
}

// ---- What a pass leaves

// Up to four nodes of one operand each, of a program with one tensor of a section and one of a step.
typedef struct left {
  struct {
    int tensor, access, origin;
  } nodes[4];
  int count;
  unsigned named;
} left;

static void check_left(void *argument) {
  const left *given = argument;
  fsdp_program *program = fsdp_program_create();
  fsdp_program_tensor(program, &(fsdp_tensor){.name = "a", .lifetime = FSDP_LIVE_SECTION, .bytes = 4});
  fsdp_program_tensor(program, &(fsdp_tensor){.name = "b", .lifetime = FSDP_LIVE_STEP, .bytes = 4});
  fsdp_nodes list = {0};
  fsdp_nodes_clear(&list);
  for (int i = 0; i < given->count; i++) {
    fsdp_list_node node = node_of(given->nodes[i].origin);
    node.operands[node.operand_count++] =
        (fsdp_operand){.tensor = given->nodes[i].tensor, .access = (fsdp_access)given->nodes[i].access};
    fsdp_nodes_insert(&list, &node);
  }
  fsdp_nodes_check(&list, program, UNITS, given->named, "test");
  fsdp_nodes_check_origins(&list);
}

// Whether the checks of what a pass leaves abort.
static bool is_stopped(const left *given) {
  left copy = *given;
  return aborts(check_left, &copy);
}

TEST(test_what_a_pass_leaves) {
  enum { A, B, NONE };
  const left sound[] = {
      {{{A, FSDP_WRITE, 0}, {A, FSDP_READ, 1}, {B, FSDP_READ, 1}}, 3, 0},
      {{{FSDP_UNIT_WEIGHTS(2), FSDP_READ, 0}}, 1, FSDP_NAMED_WEIGHTS},
      {{{FSDP_UNIT_GRADIENT(0), FSDP_WRITE, -1}, {B, FSDP_UPDATE, -1}}, 2, FSDP_NAMED_GRADIENTS},
      {{{B, FSDP_READ, 3}, {B, FSDP_READ, -1}, {B, FSDP_READ, 3}, {B, FSDP_READ, 1}}, 4, 0}};
  const left broken[] = {{{{A, FSDP_READ, 0}, {A, FSDP_WRITE, 0}}, 2, 0},
                         {{{A, FSDP_UPDATE, 0}}, 1, 0},
                         {{{NONE, FSDP_WRITE, 0}}, 1, 0},
                         {{{FSDP_UNIT_WEIGHTS(2), FSDP_READ, 0}}, 1, FSDP_NAMED_GRADIENTS},
                         {{{FSDP_UNIT_WEIGHTS(UNITS), FSDP_READ, 0}}, 1, FSDP_NAMED_WEIGHTS},
                         {{{FSDP_UNIT_GRADIENT(0), FSDP_WRITE, 0}}, 1, 0},
                         {{{B, FSDP_READ, 1}, {B, FSDP_READ, 2}, {B, FSDP_READ, 1}}, 3, 0}};
  for (size_t i = 0; i < sizeof sound / sizeof *sound; i++)
    if (is_stopped(&sound[i])) fail_msg("list %zu is stopped", i);
  for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
    if (!is_stopped(&broken[i])) fail_msg("list %zu is not stopped", i);
}
