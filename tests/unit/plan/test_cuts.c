// Cuts, and the boxes and runs of what a rank holds, against pieces that are dealt out element by element.
#include "runtime/base/check.h"
#include "runtime/plan/mesh/boxes.h"
#include "tests/support/cuts.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>
#include <string.h>

// Axes in any order: two that cut, one for shards, one for replicas.
static fsdp_mesh random_mesh(random_source *random) {
  static const char *const names[] = {"tensor", "inner", "fsdp", "data"};
  fsdp_mesh mesh = {0};
  int first = random_int(random, 0, 3);
  for (int a = 0; a < 4; a++)
    assert_true(fsdp_mesh_add(&mesh, names[(first + a) % 4], random_int(random, 1, a == 3 ? 2 : 4)));
  fsdp_mesh_complete(&mesh);
  return mesh;
}

// ---- A dimension

// Every run says what the dealt pieces say.
static void check_cut(const fsdp_cut *cut, const fsdp_mesh *mesh) {
  int64_t size = fsdp_cut_size(cut), local_size = fsdp_cut_local_size(cut, mesh), *held;
  int ranks = fsdp_mesh_ranks(mesh);
  int *holders = fsdp_alloc_zeroed((size_t)size, sizeof *holders);
  for (int r = 0; r < ranks; r++) {
    assert_int_equal(expand_cut(cut, mesh, r, &held), local_size);
    for (int64_t at = 0; at < local_size; at++) {
      fsdp_cut_run run = fsdp_cut_run_at(cut, mesh, r, at);
      assert_true(run.count > 0 && at + run.count <= local_size);
      for (int64_t i = 0; i < run.count; i++)
        assert_int_equal(held[at + i], run.index < 0 ? -1 : run.index + i);
      if (held[at] >= 0) holders[held[at]]++;
    }
    free(held);
  }
  int copies = ranks / fsdp_mesh_group_size(mesh, fsdp_cut_axes(cut));
  for (int64_t i = 0; i < size; i++) assert_int_equal(holders[i], copies);
  free(holders);
}

TEST(test_random_cuts) {
  for (int seed = 0; seed < 400; seed++) {
    random_source random = {.seed = (uint64_t)seed};
    fsdp_mesh mesh = random_mesh(&random);
    fsdp_cut cut = random_blocks(&random);
    random_cut_axes(&random, &mesh, fsdp_mesh_axes(&mesh, "tensor,inner"), &cut);
    check_cut(&cut, &mesh);
  }
}

static void expect_runs(const fsdp_cut *cut, const fsdp_mesh *mesh, int rank, const int64_t (*runs)[2]) {
  int64_t at = 0, size = fsdp_cut_local_size(cut, mesh);
  for (int i = 0; at < size; i++) {
    fsdp_cut_run run = fsdp_cut_run_at(cut, mesh, rank, at);
    assert_int_equal(run.index, runs[i][0]);
    assert_int_equal(run.count, runs[i][1]);
    at += run.count;
  }
  assert_int_equal(at, size);
}

TEST(test_known_cuts) {
  fsdp_mesh mesh = {0};
  fsdp_mesh_add(&mesh, "tensor", 2);
  fsdp_mesh_add(&mesh, "inner", 2);
  fsdp_mesh_complete(&mesh);
  fsdp_axis_set outer = fsdp_mesh_axes(&mesh, "tensor"), inner = fsdp_mesh_axes(&mesh, "inner");
  // A vocabulary of 257 over 4: ranks 0 to 2 have 65, the last 62.
  fsdp_cut vocabulary = {.block_count = 1, .blocks = {{257, 1, 1}}, .group_axes = outer | inner};
  assert_int_equal(fsdp_cut_local_size(&vocabulary, &mesh), 65);
  expect_runs(&vocabulary, &mesh, 1, (const int64_t[][2]){{65, 65}});
  expect_runs(&vocabulary, &mesh, 3, (const int64_t[][2]){{195, 62}, {-1, 3}});
  // 3 groups of 5 query heads of 8 elements: groups over 2, heads of a group over 2.
  fsdp_cut heads = {
      .dim = 1, .block_count = 1, .blocks = {{3, 5, 8}}, .group_axes = outer, .item_axes = inner};
  assert_int_equal(fsdp_cut_local_size(&heads, &mesh), 2 * 3 * 8);
  expect_runs(&heads, &mesh, 0, (const int64_t[][2]){{0, 24}, {40, 24}});
  expect_runs(&heads, &mesh, 3, (const int64_t[][2]){{80 + 24, 16}, {-1, 8}, {-1, 24}});
  // One key head over 4 ranks: three hold padding alone.
  fsdp_cut one = {.block_count = 1, .blocks = {{1, 1, 8}}, .group_axes = outer, .item_axes = inner};
  expect_runs(&one, &mesh, 0, (const int64_t[][2]){{0, 8}});
  for (int r = 1; r < 4; r++) expect_runs(&one, &mesh, r, (const int64_t[][2]){{-1, 8}});
  // q, k and v side by side: each by itself.
  fsdp_cut joined = {.block_count = 3, .blocks = {{3, 1, 4}, {3, 1, 4}, {2, 2, 1}}, .group_axes = outer};
  expect_runs(&joined, &mesh, 2, (const int64_t[][2]){{8, 4}, {-1, 4}, {20, 4}, {-1, 4}, {26, 2}});
  int64_t shape[2] = {7, 15}, local[2];
  heads.blocks[0].width = 1;
  assert_int_equal(fsdp_cut_local_shape(&heads, &mesh, 2, shape, local), 7 * 6);
  assert_int_equal(local[0], 7);
  assert_int_equal(local[1], 6);
  assert_int_equal(fsdp_cut_local_shape(&(fsdp_cut){0}, &mesh, 2, shape, local), 7 * 15);
}

// ---- Units

typedef struct units_case {
  fsdp_mesh mesh;
  fsdp_graph *graph;
  fsdp_units *units;
} units_case;

static units_case make_case(random_source *random) {
  units_case c = {.mesh = random_mesh(random)};
  fsdp_error error;
  c.graph = random_cut_graph((random_graph_config){.shapes = {.seed = random->seed},
                                                   .cuts = {.seed = random->seed + 7},
                                                   .mesh = &c.mesh,
                                                   .params = random_int(random, 1, 5),
                                                   .cut_axes = fsdp_mesh_axes(&c.mesh, "tensor,inner"),
                                                   .flat_axes = fsdp_mesh_axes(&c.mesh, "fsdp")});
  fsdp_wrap_policy policy = {.kind = random_int(random, 0, 1) ? FSDP_WRAP_BLOCK : FSDP_WRAP_NONE};
  assert_int_equal(fsdp_units_create(c.graph, &policy, &c.mesh, &c.units, &error), FSDP_OK);
  return c;
}

static void free_case(units_case *c) {
  fsdp_units_destroy(c->units);
  fsdp_graph_destroy(c->graph);
}

typedef struct element {
  int param; // -1: padding
  int64_t index;
} element;

// What each element of a rank's flat buffer is; the caller frees it.
static element *expand_unit(const units_case *c, int unit, int rank) {
  const fsdp_unit *u = &c->units->units[unit];
  element *elements = fsdp_alloc((size_t)u->padded_numel * sizeof *elements + 1);
  for (int64_t e = 0; e < u->padded_numel; e++) elements[e] = (element){-1, -1};
  for (int i = 0; i < u->param_count; i++) {
    const fsdp_unit_param *slot = &c->units->params[u->first_param + i];
    int64_t *indices;
    int64_t numel = expand_param(&c->graph->params[slot->param], &c->mesh, rank, &indices);
    assert_int_equal(numel, fsdp_units_local_numel(c->graph, slot->param));
    for (int64_t e = 0; e < numel; e++)
      if (indices[e] >= 0) elements[slot->offset + e] = (element){slot->param, indices[e]};
    free(indices);
  }
  return elements;
}

static void check_runs(const units_case *c, const fsdp_unit_range *range, const element *elements) {
  int count;
  int64_t next = 0;
  fsdp_shard_run *runs = fsdp_units_runs(c->units, c->graph, range, &count);
  for (int i = 0; i < count; i++) {
    assert_true(runs[i].numel > 0 && runs[i].shard_offset >= next);
    for (; next < runs[i].shard_offset; next++) assert_int_equal(elements[range->first + next].param, -1);
    for (int64_t e = 0; e < runs[i].numel; e++, next++) {
      assert_int_equal(elements[range->first + next].param, runs[i].param);
      assert_int_equal(elements[range->first + next].index, runs[i].element_index + e);
    }
    if (i == 0 || runs[i].param != runs[i - 1].param) continue;
    bool follows = runs[i - 1].element_index + runs[i - 1].numel == runs[i].element_index &&
                   runs[i - 1].shard_offset + runs[i - 1].numel == runs[i].shard_offset;
    assert_false(follows);
  }
  for (; next < range->numel; next++) assert_int_equal(elements[range->first + next].param, -1);
  free(runs);
}

static void check_boxes(const units_case *c, const fsdp_unit_range *range, const element *elements) {
  fsdp_box_list list = {0};
  int64_t real = 0, held = 0;
  for (int64_t e = 0; e < range->numel; e++) real += elements[range->first + e].param >= 0;
  fsdp_units_boxes(c->units, c->graph, range, &list);
  for (int b = 0; b < list.count; b++) {
    const fsdp_box *box = &list.boxes[b];
    const fsdp_param *param = &c->graph->params[box->param];
    int64_t at[FSDP_MAX_DIMS];
    assert_int_equal(box->dims, param->dims);
    memcpy(at, box->start, sizeof at);
    for (int64_t e = 0; e < fsdp_box_numel(box); e++, held++) {
      int64_t offset = fsdp_box_offset_of(box, at), index = 0;
      for (int d = 0; d < box->dims; d++) index = index * param->shape[d] + at[d];
      assert_true(offset >= 0 && offset < range->numel);
      assert_int_equal(elements[range->first + offset].param, box->param);
      assert_int_equal(elements[range->first + offset].index, index);
      for (int d = box->dims - 1; d >= 0 && ++at[d] == box->start[d] + box->extent[d]; d--)
        at[d] = box->start[d];
    }
  }
  assert_int_equal(held, real);
  fsdp_box_list_free(&list);
}

// Ranges of every rank's buffer: boxes and runs name each element that is no padding, once.
TEST(test_ranges_of_units) {
  for (int seed = 0; seed < 150; seed++) {
    random_source random = {.seed = (uint64_t)seed};
    units_case c = make_case(&random);
    for (int r = 0; r < fsdp_mesh_ranks(&c.mesh); r++)
      for (int u = 0; u < c.units->count; u++) {
        int padded = (int)c.units->units[u].padded_numel;
        element *elements = expand_unit(&c, u, r);
        for (int k = 0; k < 4; k++) {
          fsdp_unit_range range = {.unit = u, .rank = r, .numel = padded};
          if (k) range.first = random_int(&random, 0, padded);
          if (k) range.numel = random_int(&random, 0, padded - (int)range.first);
          check_runs(&c, &range, elements);
          check_boxes(&c, &range, elements);
        }
        free(elements);
      }
    free_case(&c);
  }
}

// Over all ranks' shards, each element lies on exactly the replicas of its unit.
TEST(test_shards_hold_every_element) {
  for (int seed = 0; seed < 150; seed++) {
    random_source random = {.seed = (uint64_t)seed + 1000};
    units_case c = make_case(&random);
    int **holders = fsdp_alloc((size_t)c.graph->param_count * sizeof *holders);
    for (int p = 0; p < c.graph->param_count; p++)
      holders[p] = fsdp_alloc_zeroed((size_t)c.graph->params[p].numel, sizeof **holders);
    for (int r = 0; r < fsdp_mesh_ranks(&c.mesh); r++)
      for (int u = 0; u < c.units->count; u++) {
        for (int other = 0; other < u; other++)
          assert_string_not_equal(c.units->units[other].path, c.units->units[u].path);
        int count;
        fsdp_shard_run *runs = fsdp_units_shard_runs(c.units, c.graph, u, r, &count);
        for (int i = 0; i < count; i++) {
          assert_int_equal(c.units->unit_of_param[runs[i].param], u);
          for (int64_t e = 0; e < runs[i].numel; e++) holders[runs[i].param][runs[i].element_index + e]++;
        }
        free(runs);
      }
    for (int p = 0; p < c.graph->param_count; p++) {
      const fsdp_unit *unit = &c.units->units[c.units->unit_of_param[p]];
      for (int64_t e = 0; e < c.graph->params[p].numel; e++)
        assert_int_equal(holders[p][e], unit->replica_count);
      free(holders[p]);
    }
    free(holders);
    free_case(&c);
  }
}
