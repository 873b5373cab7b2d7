// Meshes of which the axis of the heads is factored: into what, and what messages make of it again.
#include "models/family.h"
#include "runtime/plan/plan.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <string.h>

// The plan of a model with 2 key/value heads, 4 query heads of each.
static fsdp_plan *plan_on(const fsdp_mesh *mesh) {
  fsdp_plan_config config = {.model = {.family = family_of_preset("tiny"),
                                       .vocab_size = 64,
                                       .hidden_size = 32,
                                       .intermediate_size = 32,
                                       .num_layers = 1,
                                       .num_heads = 8,
                                       .num_kv_heads = 2,
                                       .head_dim = 4,
                                       .norm_eps = 1e-5,
                                       .rope_theta = 1e4},
                             .batch = 1,
                             .seq = 16,
                             .micro_batches = 1,
                             .mesh = *mesh,
                             .wrap = {.kind = FSDP_WRAP_BLOCK},
                             .backend = fsdp_plan_backend_cpu()};
  return plan_of_config(&config);
}

static fsdp_mesh mesh_of(const char *const *names, const int *sizes, int count) {
  fsdp_mesh mesh = {0};
  for (int a = 0; a < count; a++) assert_true(fsdp_mesh_add(&mesh, names[a], sizes[a]));
  fsdp_mesh_complete(&mesh);
  return mesh;
}

static void expect_printed(const fsdp_mesh *mesh, const char *expected) {
  char text[FSDP_MESH_TEXT_BYTES];
  assert_string_equal(fsdp_mesh_print(mesh, ",", text), expected);
}

// As many names as a user may give, and room for the replicas.
TEST(test_most_axes) {
  const char *const names[] = {"a", "b", "c", "tensor", "context"};
  const int sizes[] = {1, 1, 1, 8, 2};
  fsdp_mesh mesh = mesh_of(names, sizes, 5);
  fsdp_plan *plan = plan_on(&mesh);
  assert_int_equal(plan->axes.mesh.count, FSDP_MESH_AXES_MAX);
  expect_printed(&plan->axes.mesh, "data=1,fsdp=1,tensor=2,tensor_replica=4,context=2");
  fsdp_mesh whole = fsdp_factored_whole(&plan->axes.mesh);
  expect_printed(&whole, "data=1,fsdp=1,tensor=8,context=2");
  assert_int_equal(fsdp_mesh_ranks(&whole), 16);
  fsdp_plan_destroy(plan);
}

// By every name of the factored mesh, the one of the mesh that was given.
TEST(test_sources) {
  const char *const names[] = {"fsdp", "tensor", "context"};
  const int sizes[] = {2, 4, 2};
  fsdp_mesh mesh = mesh_of(names, sizes, 3);
  fsdp_plan *plan = plan_on(&mesh);
  const char *const pairs[][2] = {{"fsdp", "fsdp"},
                                  {"tensor", "tensor"},
                                  {"tensor_replica", "tensor"},
                                  {"tensor,tensor_replica", "tensor"},
                                  {"context", "context"},
                                  {"fsdp,tensor_replica,context", "fsdp,tensor,context"}};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
    assert_int_equal(fsdp_factored_source(&plan->axes, fsdp_mesh_axes(&plan->axes.mesh, pairs[i][0])),
                     fsdp_mesh_axes(&mesh, pairs[i][1]));
  fsdp_plan_destroy(plan);
}

// With at most a rank for each key/value head the mesh stays as it is.
TEST(test_not_factored) {
  const char *const names[] = {"tensor", "context"};
  const int sizes[] = {2, 2};
  fsdp_mesh mesh = mesh_of(names, sizes, 2);
  fsdp_plan *plan = plan_on(&mesh);
  fsdp_axis_set all = fsdp_mesh_all_axes(&mesh);
  assert_true(plan->axes.axis < 0);
  assert_int_equal(fsdp_factored_source(&plan->axes, all), all);
  fsdp_mesh whole = fsdp_factored_whole(&plan->axes.mesh);
  expect_printed(&whole, "data=1,fsdp=1,tensor=2,context=2");
  fsdp_plan_destroy(plan);
}
