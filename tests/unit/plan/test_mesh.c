// Meshes, groups, affine numbers, placements and boxes against counting one by one.
#include "models/graph/graph.h"
#include "runtime/plan/mesh/boxes.h"
#include "tests/support/harness.h"
#include "tests/support/models.h"
#include "tests/support/random_program.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 7 * 5 * 5 * 3 };

static fsdp_mesh random_mesh(random_source *random) {
  static const char *const names[] = {"data", "fsdp", "tensor", "pipe_1"};
  fsdp_mesh mesh = {0};
  int count = random_int(random, 1, 4), first = random_int(random, 0, 3);
  for (int a = 0; a < count; a++)
    assert_true(fsdp_mesh_add(&mesh, names[(first + a) % 4], random_int(random, 1, a ? 5 : 7)));
  if (random_int(random, 0, 1)) fsdp_mesh_complete(&mesh);
  return mesh;
}

// Coordinates of every rank by counting up, the last axis first.
static void count_up(const fsdp_mesh *mesh, int coordinates[]) {
  for (int a = mesh->count - 1; a >= 0; a--) {
    if (++coordinates[a] < mesh->axes[a].size) return;
    coordinates[a] = 0;
  }
}

static bool same_group(const fsdp_mesh *mesh, fsdp_axis_set axes, const int *x, const int *y) {
  for (int a = 0; a < mesh->count; a++)
    if (x[a] != y[a] && !(axes & 1u << a)) return false;
  return true;
}

static void check_groups(const fsdp_mesh *mesh, fsdp_axis_set axes) {
  int ranks = fsdp_mesh_ranks(mesh);
  int(*at)[FSDP_MESH_AXES_MAX] = calloc(RANKS_MAX + 1, sizeof *at);
  for (int r = 0; r < ranks; r++) {
    memcpy(at[r + 1], at[r], sizeof at[r]);
    count_up(mesh, at[r + 1]);
  }
  int colors[RANKS_MAX] = {0};
  for (int r = 0; r < ranks; r++) {
    int place = 0, size = 0, found[FSDP_MESH_AXES_MAX];
    fsdp_mesh_group group = fsdp_mesh_group_of(mesh, axes, r);
    for (int other = 0; other < ranks; other++) {
      bool member = same_group(mesh, axes, at[r], at[other]);
      if (member) assert_int_equal(fsdp_mesh_group_member(mesh, axes, r, size), other);
      place += member && other < r;
      size += member;
      assert_int_equal(member, fsdp_mesh_group_of(mesh, axes, other).color == group.color);
    }
    assert_int_equal(group.size, size);
    assert_int_equal(group.rank, place);
    assert_int_equal(fsdp_mesh_group_size(mesh, axes), size);
    assert_true(group.color >= 0 && group.color < ranks / size);
    colors[group.color]++;
    fsdp_mesh_coordinates(mesh, r, found);
    for (int a = 0; a < mesh->count; a++) assert_int_equal(found[a], at[r][a]);
    assert_int_equal(fsdp_mesh_rank(mesh, found), r);
  }
  free(at);
}

TEST(test_groups) {
  for (int seed = 0; seed < 60; seed++) {
    random_source random = {.seed = (uint64_t)seed};
    fsdp_mesh mesh = random_mesh(&random);
    check_groups(&mesh, (fsdp_axis_set)random_int(&random, 0, (1 << mesh.count) - 1));
    check_groups(&mesh, fsdp_mesh_all_axes(&mesh));
    check_groups(&mesh, 0);
  }
}

TEST(test_axes) {
  fsdp_mesh mesh = {0};
  assert_true(fsdp_mesh_add(&mesh, "tensor", 3));
  assert_false(fsdp_mesh_add(&mesh, "tensor", 2));
  assert_false(fsdp_mesh_add(&mesh, "fsdp", 0));
  assert_false(fsdp_mesh_add(&mesh, "", 2));
  assert_false(fsdp_mesh_add(&mesh, "a b", 2));
  assert_false(fsdp_mesh_add(&mesh, "a_name_of_16_chars", 2));
  assert_false(fsdp_mesh_add(&mesh, "fsdp", FSDP_MESH_RANKS_MAX));
  assert_true(fsdp_mesh_add(&mesh, "fsdp", 2));
  fsdp_mesh_complete(&mesh);
  char text[FSDP_MESH_TEXT_BYTES];
  assert_string_equal(fsdp_mesh_print(&mesh, ",", text), "data=1,tensor=3,fsdp=2");
  assert_int_equal(mesh.count, 5);
  assert_int_equal(fsdp_mesh_find(&mesh, "context"), 3);
  assert_int_equal(fsdp_mesh_find(&mesh, "tens"), -1);
  assert_int_equal(fsdp_mesh_size(&mesh, "nobody"), 1);
  // data has size 1, so it is in no set.
  assert_int_equal(fsdp_mesh_axes(&mesh, "data,fsdp"), 1u << 2);
  assert_string_equal(fsdp_mesh_print_axes(&mesh, fsdp_mesh_axes(&mesh, "fsdp,tensor"), text), "tensor+fsdp");
  assert_string_equal(fsdp_mesh_print_axes(&mesh, 0, text), "-");
  for (int i = 0; i < FSDP_AXIS_OWN_MAX; i++)
    assert_true(fsdp_mesh_add(&mesh, (const char *[]){"a", "b", "c"}[i], 1));
  assert_true(fsdp_mesh_add(&mesh, "tensor_replica", 1));
  assert_false(fsdp_mesh_add(&mesh, "d", 1)); // full
}

TEST(test_affine) {
  for (int seed = 0; seed < 100; seed++) {
    random_source random = {.seed = (uint64_t)seed};
    fsdp_mesh mesh = random_mesh(&random);
    fsdp_affine affine = {.base = random_int(&random, -50, 50)};
    for (int a = 0; a < mesh.count; a++) affine.stride[a] = random_int(&random, -9, 9);
    int64_t least = INT64_MAX, greatest = INT64_MIN, low, high;
    int at[FSDP_MESH_AXES_MAX] = {0};
    fsdp_axis_set axes = (fsdp_axis_set)random_int(&random, 0, (1 << mesh.count) - 1);
    fsdp_affine place = fsdp_affine_of_place(&mesh, axes, 7, 3);
    for (int r = 0; r < fsdp_mesh_ranks(&mesh); r++, count_up(&mesh, at)) {
      int64_t value = affine.base;
      for (int a = 0; a < mesh.count; a++) value += at[a] * affine.stride[a];
      assert_int_equal(fsdp_affine_at(&affine, &mesh, r), value);
      if (value < least) least = value;
      if (value > greatest) greatest = value;
      assert_int_equal(fsdp_affine_at(&place, &mesh, r), 7 + 3 * fsdp_mesh_group_of(&mesh, axes, r).rank);
    }
    fsdp_affine_bounds(&affine, &mesh, &low, &high);
    assert_int_equal(low, least);
    assert_int_equal(high, greatest);
    assert_int_equal(fsdp_affine_axes(&place, &mesh), axes & fsdp_mesh_all_axes(&mesh));
  }
}

// ---- Placements

TEST(test_placements) {
  fsdp_mesh mesh = {0};
  fsdp_mesh_add(&mesh, "data", 2);
  fsdp_mesh_add(&mesh, "fsdp", 3);
  fsdp_mesh_add(&mesh, "tensor", 4);
  fsdp_dim_axes dim = {0};
  fsdp_dim_axes_cut(&dim, fsdp_mesh_axes(&mesh, "fsdp,data"));
  assert_int_equal(dim.count, 2);
  assert_int_equal(dim.axes[0], 0); // the first axis of the mesh is outermost
}

// The first pass: parameters lie flat over fsdp, the batch over data and fsdp; units follow.
TEST(test_written_placements) {
  fsdp_mesh mesh = {0};
  fsdp_mesh_add(&mesh, "fsdp", 3);
  fsdp_mesh_add(&mesh, "data", 2);
  fsdp_mesh_complete(&mesh);
  fsdp_model_config config = harness_small_plan(1).model;
  fsdp_graph *graph = fsdp_model_forward(&config, 2, 8);
  place_by_default(graph, &mesh);
  const fsdp_value *tokens = &graph->values[graph->inputs[FSDP_INPUT_TOKENS]];
  assert_int_equal(tokens->shape[0], 6 * 16);
  assert_int_equal(tokens->local[0], 16);
  fsdp_units *units;
  fsdp_error error;
  fsdp_wrap_policy policy = {.kind = FSDP_WRAP_BLOCK};
  assert_int_equal(fsdp_units_create(graph, &policy, &mesh, &units, &error), FSDP_OK);
  for (int u = 0; u < units->count; u++) {
    const fsdp_unit *unit = &units->units[u];
    if (unit->numel == 0) continue;
    assert_int_equal(unit->shard_axes, 1);
    assert_int_equal(unit->shard_count, 3);
    assert_int_equal(unit->replica_axes, 2);
    assert_int_equal(unit->replica_count, 2);
    assert_true(unit->norm_weight == 0.5f);
    // fsdp is the slower axis here.
    for (int r = 0; r < 6; r++)
      assert_int_equal(fsdp_units_shard_begin(units, u, r), r / 2 * unit->shard_numel);
  }
  assert_true(fsdp_units_have_replicas(units));
  fsdp_units_destroy(units);
  fsdp_graph_destroy(graph);
}

// ---- Boxes

// Marks what the boxes hold: at[element] = its offset in the range. Returns how many elements.
static int64_t mark(const fsdp_box *box, const int64_t *shape, int64_t *at) {
  int64_t index[FSDP_MAX_DIMS], marked = 0;
  for (int64_t e = 0; e < fsdp_box_numel(box); e++, marked++) {
    int64_t left = e, flat = 0, offset = box->offset;
    for (int d = box->dims - 1; d >= 0; d--) {
      index[d] = left % box->extent[d];
      left /= box->extent[d];
    }
    for (int d = 0; d < box->dims; d++) {
      offset += index[d] * box->stride[d];
      index[d] += box->start[d];
      flat = flat * shape[d] + index[d];
    }
    assert_int_equal(fsdp_box_offset_of(box, index), offset);
    assert_int_equal(at[flat], -1); // each element once
    at[flat] = offset;
  }
  return marked;
}

TEST(test_boxes_of_a_range) {
  enum { NUMEL_MAX = 9 * 9 * 9 * 9 };
  static int64_t at[NUMEL_MAX];
  for (int seed = 0; seed < 2000; seed++) {
    random_source random = {.seed = (uint64_t)seed};
    int dims = random_int(&random, 1, FSDP_MAX_DIMS);
    int64_t shape[FSDP_MAX_DIMS], whole = 1;
    for (int d = 0; d < dims; d++) whole *= shape[d] = random_int(&random, 1, 9);
    int64_t first = random_int(&random, 0, (int)whole), numel = random_int(&random, 0, (int)(whole - first));
    fsdp_box boxes[FSDP_BOXES_MAX];
    int count = fsdp_boxes_cut(dims, shape, first, numel, 100, boxes);
    assert_true(count <= 2 * dims - 1);
    for (int64_t e = 0; e < whole; e++) at[e] = -1;
    int64_t marked = 0;
    for (int b = 0; b < count; b++) marked += mark(&boxes[b], shape, at);
    assert_int_equal(marked, numel);
    for (int64_t e = 0; e < whole; e++)
      assert_int_equal(at[e], e >= first && e < first + numel ? 100 + e - first : -1);
  }
}

// Two boxes of one tensor share the elements that lie in both.
TEST(test_shared_boxes) {
  for (int seed = 0; seed < 2000; seed++) {
    random_source random = {.seed = (uint64_t)seed};
    int64_t shape[3] = {5, 6, 7}, in_a[210], in_shared[210], numel = 1, expected = 0;
    fsdp_box a = {.dims = 3, .offset = 11, .stride = {100, 9, 1}}, b = {.dims = 3}, shared;
    for (int d = 0; d < 3; d++, numel *= shape[d - 1]) {
      a.start[d] = random_int(&random, 0, (int)shape[d] - 1);
      a.extent[d] = random_int(&random, 1, (int)(shape[d] - a.start[d]));
      b.start[d] = random_int(&random, 0, (int)shape[d] - 1);
      b.extent[d] = random_int(&random, 1, (int)(shape[d] - b.start[d]));
    }
    for (int64_t e = 0; e < numel; e++) in_a[e] = in_shared[e] = -1;
    mark(&a, shape, in_a);
    bool meet = fsdp_box_intersect(&a, &b, &shared);
    if (meet) mark(&shared, shape, in_shared);
    for (int64_t e = 0; e < numel; e++) {
      int64_t at[3] = {e / 42, e / 7 % 6, e % 7};
      bool in_b = true;
      for (int d = 0; d < 3; d++) in_b = in_b && at[d] >= b.start[d] && at[d] < b.start[d] + b.extent[d];
      assert_int_equal(in_shared[e], in_b ? in_a[e] : -1);
      expected += in_b && in_a[e] >= 0;
    }
    assert_int_equal(meet, expected > 0);
  }
}

// Nodes of neighbouring ranks: the fastest axes lie inside them.
TEST(test_axes_across_nodes) {
  fsdp_mesh mesh = fsdp_mesh_of(2, 4);
  assert_int_equal(fsdp_mesh_axes_across(&mesh, 8), 0);
  assert_int_equal(fsdp_mesh_axes_across(&mesh, 4), fsdp_mesh_axes(&mesh, "data"));
  assert_int_equal(fsdp_mesh_axes_across(&mesh, 2), fsdp_mesh_axes(&mesh, "data,fsdp"));
  mesh = fsdp_mesh_of(4, 3); // groups of three over nodes of four: some span two
  assert_int_equal(fsdp_mesh_axes_across(&mesh, 4), fsdp_mesh_axes(&mesh, "data,fsdp"));
}

// Runs agree with boxes, and a flat shard has one run per parameter.
TEST(test_shards_of_units) {
  static const char *const classes[] = {"LlamaMLP", "Linear", "LlamaDecoderLayer"};
  fsdp_model_config config = harness_small_plan(1).model;
  for (int k = 0; k < 3 * 7; k++) {
    fsdp_mesh mesh = fsdp_mesh_of(k % 2 + 1, k / 3 + 1);
    fsdp_graph *graph = fsdp_model_forward(&config, 1, 4);
    place_by_default(graph, &mesh);
    fsdp_wrap_policy policy = {.kind = FSDP_WRAP_MODULE, .classes = classes[k % 3]};
    fsdp_units *units;
    fsdp_error error;
    assert_int_equal(fsdp_units_create(graph, &policy, &mesh, &units, &error), FSDP_OK);
    int64_t *holders = calloc(1 << 20, sizeof *holders);
    for (int r = 0; r < fsdp_mesh_ranks(&mesh); r++)
      for (int u = 0; u < units->count; u++) {
        int count;
        fsdp_shard_run *runs = fsdp_units_shard_runs(units, graph, u, r, &count);
        assert_true(count <= units->units[u].param_count);
        for (int i = 0; i < count; i++) {
          const fsdp_unit_param *slot = &units->params[units->slot_of_param[runs[i].param]];
          int64_t begin = r % mesh.axes[1].size * units->units[u].shard_numel;
          for (int64_t e = 0; e < runs[i].numel; e++) {
            // In the flat buffer the element lies where its parameter does.
            assert_int_equal(begin + runs[i].shard_offset + e, slot->offset + runs[i].element_index + e);
            if (runs[i].param == 0) holders[runs[i].element_index + e]++;
          }
        }
        free(runs);
      }
    for (int64_t e = 0; e < graph->params[0].numel; e++) assert_int_equal(holders[e], mesh.axes[0].size);
    free(holders);
    fsdp_units_destroy(units);
    fsdp_graph_destroy(graph);
  }
}
