// What every unit test includes: cmocka, behind the headers that it has to follow, and its tests, which
// are named once.
//
//   TEST(numbers_add_up) {
//     assert_int_equal(1 + 1, 2);
//   }
//
// They run in the order in which they stand. A file without a main function has that of unit_main.c.
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

// Begins the definition of a test, which is added before main runs; set_up and tear_down are called before
// and after it.
#define TEST_WITH(name, set_up, tear_down)                                                                   \
  static void name(void **state);                                                                            \
  __attribute__((constructor)) static void add_##name(void) {                                                \
    add_test((struct CMUnitTest)cmocka_unit_test_setup_teardown(name, set_up, tear_down));                   \
  }                                                                                                          \
  static void name(void **state)
#define TEST(name) TEST_WITH(name, NULL, NULL)

void add_test(struct CMUnitTest test);

// Runs all tests of the program between `set_up` and `tear_down` (NULL: nothing); how many failed.
int run_all_tests(CMFixtureFunction set_up, CMFixtureFunction tear_down);

// Whether the call does not return: a broken invariant. It is made in a child, whose message is of no
// interest.
bool aborts(void (*call)(void *argument), void *argument);
