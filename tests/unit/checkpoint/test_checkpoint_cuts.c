// Checkpoints of parameters that tensor parallelism cuts: each element lies in one piece of one rank's file,
// what one mesh saves any other loads to the bit, and the manifest says how it was cut.
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "runtime/checkpoint/checkpoint_file.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/exec/session.h"
#include "runtime/exec/state.h"
#include "tests/support/cuts.h"
#include "tests/support/draws.h"
#include "tests/support/harness.h"
#include "tests/support/io_files.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// ---- Plans without a program, and real ones

typedef struct layout {
  fsdp_program program; // its mesh alone
  fsdp_plan *plan;
  bool is_real;
  fsdp_checkpoint *checkpoint;
} layout;

// `graph` in units under the mesh of l->program. The layout owns it.
static void lay_out(layout *l, fsdp_graph *graph, fsdp_wrap_kind wrap) {
  fsdp_wrap_policy policy = {.kind = wrap};
  fsdp_error error;
  l->plan = fsdp_alloc_zeroed(1, sizeof *l->plan);
  *l->plan = (fsdp_plan){.config = harness_small_plan(1),
                         .program = &l->program,
                         .optimizer = &fsdp_optimizers[FSDP_OPTIMIZER_ADAMW],
                         .graph = graph};
  assert_int_equal(fsdp_units_create(graph, &policy, &l->program.mesh, &l->plan->units, &error), FSDP_OK);
}

static void make_checkpoint(layout *l) {
  l->checkpoint = fsdp_checkpoint_create(l->plan, "random");
  l->checkpoint->progress = (fsdp_checkpoint_progress){.step = 7, .global_batch = 8, .sample_count = 100};
  l->checkpoint->sequence = 1;
}

// Modules and shapes follow from `seed`; mesh, cuts, units and strategy from `variant` too.
static void make_layout(layout *l, int seed, int variant) {
  static const char *const names[] = {"tensor", "inner", "fsdp", "data"};
  random_source random = {.seed = (uint64_t)(seed * 1000 + variant)};
  memset(l, 0, sizeof *l);
  int first = random_int(&random, 0, 3);
  for (int a = 0; a < 4; a++)
    assert_true(
        fsdp_mesh_add(&l->program.mesh, names[(first + a) % 4], random_int(&random, 1, a % 2 ? 2 : 3)));
  fsdp_mesh_complete(&l->program.mesh);
  fsdp_graph *graph =
      random_cut_graph((random_graph_config){.shapes = {.seed = (uint64_t)seed},
                                             .cuts = {.seed = (uint64_t)(seed * 1000 + variant)},
                                             .mesh = &l->program.mesh,
                                             .params = 1 + seed % 4,
                                             .cut_axes = fsdp_mesh_axes(&l->program.mesh, "tensor,inner"),
                                             .flat_axes = fsdp_mesh_axes(&l->program.mesh, "fsdp")});
  lay_out(l, graph, random_int(&random, 0, 1) ? FSDP_WRAP_BLOCK : FSDP_WRAP_NONE);
  make_checkpoint(l);
}

static void make_real(layout *l, const fsdp_plan_config *config) {
  fsdp_error error;
  memset(l, 0, sizeof *l);
  l->is_real = true;
  if (fsdp_plan_create(config, &l->plan, &error) != FSDP_OK) fail_msg("%s", error.message);
  make_checkpoint(l);
}

static void free_layout(layout *l) {
  fsdp_checkpoint_destroy(l->checkpoint);
  if (l->is_real) {
    fsdp_plan_destroy(l->plan);
    return;
  }
  fsdp_units_destroy(l->plan->units);
  fsdp_graph_destroy(l->plan->graph);
  free(l->plan);
}

// What elements [first, first + numel) of a rank's flat buffer are: the index, above it the graph's
// parameter; -1: padding. The caller frees it.
static int64_t *expand_range(const layout *l, const fsdp_unit_range *range) {
  const fsdp_units *units = l->plan->units;
  const fsdp_unit *u = &units->units[range->unit];
  int64_t first = range->first, numel = range->numel;
  int64_t *elements = fsdp_alloc((size_t)numel * sizeof *elements + 1);
  for (int64_t e = 0; e < numel; e++) elements[e] = -1;
  for (int i = 0; i < u->param_count; i++) {
    const fsdp_unit_param *slot = &units->params[u->first_param + i];
    int64_t *indices;
    int64_t held = expand_param(&l->plan->graph->params[slot->param], &units->mesh, range->rank, &indices);
    for (int64_t e = 0; e < held; e++) {
      int64_t at = slot->offset + e - first;
      if (at >= 0 && at < numel && indices[e] >= 0) elements[at] = ((int64_t)slot->param << 32) + indices[e];
    }
    free(indices);
  }
  return elements;
}

// ---- Layout

static void check_elements(const layout *l, int unit, int rank, int **holders) {
  const fsdp_checkpoint *c = l->checkpoint;
  int64_t first, numel;
  fsdp_checkpoint_piece(c, rank, unit, &first, &numel);
  int64_t *elements = expand_range(l, &(fsdp_unit_range){unit, rank, first, numel});
  for (int64_t e = 0; e < numel; e++) {
    int64_t index = -1;
    int found = fsdp_checkpoint_element(c, unit, rank, first + e, &index);
    assert_int_equal(fsdp_checkpoint_holder(c, unit, rank, first + e), rank);
    assert_int_equal(found >= 0, elements[e] >= 0);
    if (found < 0) continue;
    int param = (int)(elements[e] >> 32);
    assert_string_equal(c->params[found].name, l->plan->graph->params[param].name);
    assert_int_equal(index, elements[e] & 0xffffffff);
    holders[param][index]++;
  }
  free(elements);
}

TEST(every_element_is_held_once) {
  for (int seed = 0; seed < test_draws(60, 12); seed++) {
    layout l;
    make_layout(&l, seed, 1);
    int count = l.plan->graph->param_count, *holders[8];
    for (int p = 0; p < count; p++)
      holders[p] = fsdp_alloc_zeroed((size_t)l.plan->graph->params[p].numel, sizeof *holders[p]);
    for (int r = 0; r < l.checkpoint->file_count; r++)
      for (int u = 0; u < l.checkpoint->unit_count; u++) check_elements(&l, u, r, holders);
    for (int p = 0; p < count; p++) {
      for (int64_t e = 0; e < l.plan->graph->params[p].numel; e++) assert_int_equal(holders[p][e], 1);
      free(holders[p]);
    }
    free_layout(&l);
  }
}

// ---- Files

static uint32_t bits_of(int slot, const char *name, int64_t element) {
  uint32_t words[4];
  fsdp_random_words((uint64_t)slot, fsdp_random_stream(name), (uint64_t)element, words);
  return (words[0] & 0x81ffffffu) | 0x3c000000u; // a finite number
}

typedef struct maker {
  const layout *l;
  int rank;
  uint32_t values[1 << 16];
} maker;

static const void *make_range(void *context, const fsdp_checkpoint_range *range) {
  maker *m = context;
  const fsdp_unit_range of_unit = {range->unit, m->rank, range->first_elem, range->numel};
  int64_t *elements = expand_range(m->l, &of_unit);
  assert_true(range->numel <= (int64_t)(sizeof m->values / sizeof *m->values));
  for (int64_t e = 0; e < range->numel; e++) {
    int64_t what = elements[e];
    const fsdp_param *param = &m->l->plan->graph->params[what < 0 ? 0 : what >> 32];
    m->values[e] = what < 0 ? 0 : bits_of(range->slot, param->name, what & 0xffffffff);
  }
  free(elements);
  return m->values;
}

static void save(layout *l, const char *folder) {
  static maker m;
  char temporary[FSDP_CHECKPOINT_PATH_BYTES];
  fsdp_checkpoint *c = l->checkpoint;
  fsdp_error error;
  fsdp_checkpoint_path(folder, 7, FSDP_CHECKPOINT_UNFINISHED, temporary);
  assert_int_equal(fsdp_checkpoint_begin(folder, 7, c->save, &error), FSDP_OK);
  for (int r = 0; r < c->file_count; r++) {
    m.l = l, m.rank = r;
    const fsdp_checkpoint_file_config file = {
        .checkpoint = c, .rank = r, .folder = temporary, .source = make_range, .context = &m};
    int64_t bytes;
    if (fsdp_checkpoint_file_write(&file, &bytes, &error) != FSDP_OK) fail_msg("%s", error.message);
  }
  fsdp_checkpoint_index index = {0};
  fsdp_checkpoint_gone_list gone = {0};
  if (fsdp_checkpoint_commit(folder, NULL, c, &index, &gone, &error) != FSDP_OK)
    fail_msg("%s", error.message);
  free(index.entries);
}

static void read_and_compare(fsdp_checkpoint_reader *reader, const fsdp_checkpoint *c, int param,
                             int64_t first, int64_t numel) {
  uint32_t *values = fsdp_alloc((size_t)numel * sizeof *values + 1);
  const char *name = c->params[param].name;
  fsdp_error error;
  for (int slot = 0; slot < c->slot_count; slot++) {
    if (fsdp_checkpoint_read(reader, slot, param, first, numel, values, &error) != FSDP_OK)
      fail_msg("%s", error.message);
    for (int64_t e = 0; e < numel; e++)
      if (values[e] != bits_of(slot, name, first + e))
        fail_msg("slot %d of %s[%lld] is another value", slot, name, (long long)(first + e));
  }
  free(values);
}

// Each rank of the layout reads what it holds, and one reads parameters whole, as an export does.
static void load(const layout *l, const char *path) {
  fsdp_checkpoint *c;
  fsdp_error error;
  if (fsdp_checkpoint_read_manifest(path, &c, &error) != FSDP_OK) fail_msg("%s", error.message);
  fsdp_checkpoint_reader *reader = fsdp_checkpoint_reader_create(c, path);
  for (int p = 0; p < c->param_count; p++) read_and_compare(reader, c, p, 0, c->params[p].numel);
  for (int r = 0; r < fsdp_mesh_ranks(&l->plan->units->mesh); r++)
    for (int u = 0; u < l->plan->units->count; u++) {
      int count;
      fsdp_shard_run *runs = fsdp_units_shard_runs(l->plan->units, l->plan->graph, u, r, &count);
      for (int i = 0; i < count; i++) {
        int param = fsdp_checkpoint_find(c, l->plan->graph->params[runs[i].param].name);
        read_and_compare(reader, c, param, runs[i].element_index, runs[i].numel);
      }
      free(runs);
    }
  fsdp_checkpoint_reader_destroy(reader);
  fsdp_checkpoint_destroy(c);
}

TEST(saved_on_any_mesh_loads_on_any) {
  enum { VARIANTS = 3 };
  for (int seed = 0; seed < test_draws(12, 4); seed++)
    for (int from = 0; from < VARIANTS; from++) {
      layout saved;
      make_layout(&saved, seed, from);
      const char *folder = io_folder_make();
      save(&saved, folder);
      free_layout(&saved);
      for (int to = 0; to < VARIANTS; to++) {
        layout loaded;
        make_layout(&loaded, seed, to);
        load(&loaded, io_path("step-00000007"));
        free_layout(&loaded);
      }
      io_folder_remove();
    }
}

// What the executor of a rank has loaded: the saved values, zeros between them, and the same in the copies.
static void check_loaded(const layout *l, fsdp_session *session, int rank) {
  const fsdp_plan *plan = l->plan;
  for (int u = 0; u < plan->units->count; u++) {
    int64_t numel = plan->units->units[u].shard_numel;
    if (numel == 0) continue;
    const fsdp_unit_range shard = {u, rank, fsdp_units_shard_begin(plan->units, u, rank), numel};
    int64_t *elements = expand_range(l, &shard);
    uint32_t *values = fsdp_alloc((size_t)numel * sizeof *values);
    const fsdp_bf16 *copy = NULL;
    if (plan->unit_state[u].copy >= 0)
      copy = fsdp_executor_tensor(session->executor, plan->unit_state[u].copy);
    for (int slot = 0; slot < plan->optimizer->slot_count; slot++) {
      fsdp_state_read_shard(session->executor, slot, u, 0, numel, values);
      for (int64_t e = 0; e < numel; e++) {
        const char *name = elements[e] < 0 ? NULL : plan->graph->params[elements[e] >> 32].name;
        assert_int_equal(values[e], name ? bits_of(slot, name, elements[e] & 0xffffffff) : 0);
        float value;
        memcpy(&value, &values[e], sizeof value);
        if (copy && slot == FSDP_SLOT_MASTER) assert_int_equal(copy[e], fsdp_bf16_from_f32(value));
      }
    }
    free(elements);
    free(values);
  }
}

typedef struct loader {
  const fsdp_checkpoint *checkpoint;
  fsdp_checkpoint_reader *reader;
  int slot;
} loader;

static fsdp_status load_range(void *context, const fsdp_state_range *range, void *values, fsdp_error *error) {
  loader *l = context;
  int param = fsdp_checkpoint_find(l->checkpoint, range->name);
  return fsdp_checkpoint_read(l->reader, l->slot, param, range->first_elem, range->numel, values, error);
}

static void load_state(const layout *to, const char *path) {
  loader l = {0};
  fsdp_checkpoint *c;
  fsdp_error error;
  if (fsdp_checkpoint_read_manifest(path, &c, &error) != FSDP_OK) fail_msg("%s", error.message);
  l.checkpoint = c;
  for (int r = 0; r < fsdp_mesh_ranks(&to->plan->units->mesh); r++) {
    fsdp_inproc *inproc = fsdp_session_inproc(to->plan);
    fsdp_session session;
    const fsdp_session_config config = {.plan = to->plan, .inproc = inproc, .rank = r, .threads = 1};
    assert_int_equal(fsdp_session_create(&config, &session, &error), FSDP_OK);
    l.reader = fsdp_checkpoint_reader_create(c, path);
    for (l.slot = 0; l.slot < c->slot_count; l.slot++)
      if (fsdp_state_load(session.executor, l.slot, load_range, &l, &error) != FSDP_OK)
        fail_msg("%s", error.message);
    check_loaded(to, &session, r);
    fsdp_checkpoint_reader_destroy(l.reader);
    fsdp_session_destroy(&session);
    fsdp_inproc_destroy(inproc);
  }
  fsdp_checkpoint_destroy(c);
}

static void load_each_on_all(layout *layouts, int count) {
  for (int from = 0; from < count; from++) {
    const char *folder = io_folder_make();
    save(&layouts[from], folder);
    for (int to = from % test_stride(3); to < count; to += test_stride(3))
      load_state(&layouts[to], io_path("step-00000007"));
    io_folder_remove();
  }
  for (int p = 0; p < count; p++) free_layout(&layouts[p]);
}

// Plans of models: the state of each rank is what another mesh has saved, and padding is zero.
TEST(states_load_on_any_mesh) {
  static const struct {
    fsdp_strategy strategy;
    int data, fsdp, tensor, context;
  } places[] = {{FSDP_FULL, 1, 1, 1, 1}, {FSDP_FULL, 1, 2, 2, 1}, {FSDP_NO, 1, 1, 3, 1},
                {FSDP_NO, 2, 1, 4, 1},   {FSDP_FULL, 1, 1, 2, 2}, {FSDP_HYBRID, 2, 3, 1, 1},
                {FSDP_ZERO1, 1, 3, 2, 1}};
  enum { PLACES = sizeof places / sizeof *places };
  layout layouts[PLACES];
  for (int model = 0; model < 3; model++) {
    for (int p = 0; p < PLACES; p++) {
      fsdp_plan_config config = harness_small_plan(1);
      config.strategy = places[p].strategy;
      config.mesh = fsdp_mesh_of(places[p].data, places[p].fsdp);
      fsdp_mesh_resize(&config.mesh, FSDP_AXIS_TENSOR, places[p].tensor);
      fsdp_mesh_resize(&config.mesh, FSDP_AXIS_CONTEXT, places[p].context);
      config.wrap.kind = p % 2 ? FSDP_WRAP_NONE : FSDP_WRAP_BLOCK;
      if (p % 3) config.param_dtype = FSDP_BF16;
      if (model == 1)
        config.model.num_heads = 5, config.model.num_kv_heads = 1, config.model.intermediate_size = 37;
      if (model == 2) // q, k and v in one matrix, stored (in, out)
        config.model = model_of_json("{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\", "
                                     "\"vocab_size\": 57, \"n_positions\": 16, \"n_embd\": 20, "
                                     "\"n_layer\": 2, \"n_head\": 5, \"n_inner\": 33}");
      make_real(&layouts[p], &config);
    }
    load_each_on_all(layouts, PLACES);
  }
}

// Routed experts, five or six of them: saved with them divided among four ranks and loaded on three that
// shard them, and the other way; in blocks and whole.
TEST(experts_load_on_any_mesh) {
  static const char *const meshes[] = {"expert=4", "fsdp=3", "fsdp=2,expert=3", "expert=2,tensor=2",
                                       "fsdp=1"};
  enum { PLACES = sizeof meshes / sizeof *meshes };
  layout layouts[PLACES];
  for (int biased = 0; biased < 2; biased++) {
    for (int p = 0; p < PLACES; p++) {
      fsdp_plan_config config =
          biased ? harness_grouped_plan(meshes[p], 2, 3) : harness_routed_plan(meshes[p]);
      config.wrap.kind = p % 2 ? FSDP_WRAP_NONE : FSDP_WRAP_BLOCK;
      config.expert_blocks = p == 0 ? 2 : p == 4 ? 4 : 1;
      if (p % 3) config.param_dtype = FSDP_BF16;
      make_real(&layouts[p], &config);
    }
    load_each_on_all(layouts, PLACES);
  }
}

// One matrix of 3 x 5 whose columns lie over tensor=2, on fsdp=2.
static void make_one(layout *l) {
  memset(l, 0, sizeof *l);
  l->program.mesh = fsdp_mesh_of(1, 2);
  fsdp_mesh_resize(&l->program.mesh, FSDP_AXIS_TENSOR, 2);
  fsdp_graph *graph = fsdp_graph_create(1, 1);
  int root = fsdp_graph_module(graph, -1, "", "Root", "");
  const fsdp_param spec = {.name = "weight", .dims = 2, .shape = {3, 5}};
  const fsdp_cut cut = {.dim = 1,
                        .block_count = 1,
                        .blocks = {{5, 1, 1}},
                        .group_axes = fsdp_mesh_axes(&l->program.mesh, FSDP_AXIS_TENSOR)};
  int param = fsdp_graph_param(graph, root, &spec);
  graph->values[graph->params[param].value].flat = fsdp_mesh_axes(&l->program.mesh, FSDP_AXIS_FSDP);
  cut_param(graph, param, &cut, &l->program.mesh);
  lay_out(l, graph, FSDP_WRAP_NONE);
  make_checkpoint(l);
}

static const void *make_bad_range(void *context, const fsdp_checkpoint_range *range) {
  maker *m = context;
  make_range(context, range);
  if (range->slot == 1 && range->first_elem == 0) m->values[3] = 0x7fc00000u;
  return m->values;
}

// The message about a value that is not finite has its place in the whole parameter.
TEST_WITH_FOLDER(what_is_not_finite_is_named) {
  static maker m;
  layout l;
  make_one(&l);
  const char *folder = io_folder();
  // Rank 1 holds columns 3, 4 and one of padding: its fourth element is in row 1.
  static const char *const wanted[] = {"m of weight is nan at element 5:",
                                       "m of weight is nan at element 8:"};
  for (int r = 0; r < 2; r++) {
    fsdp_error error;
    int64_t bytes;
    m.l = &l, m.rank = r;
    const fsdp_checkpoint_file_config file = {
        .checkpoint = l.checkpoint, .rank = r, .folder = folder, .source = make_bad_range, .context = &m};
    IO_EXPECT(fsdp_checkpoint_file_write(&file, &bytes, &error), FSDP_ERR_NOT_FINITE, &error, wanted[r]);
  }
  free_layout(&l);
}

// ---- The manifest

TEST(manifests_read_back) {
  for (int seed = 0; seed < 40; seed++) {
    layout l;
    fsdp_checkpoint *again;
    fsdp_error error;
    make_layout(&l, seed, 2);
    char *text = fsdp_checkpoint_print(l.checkpoint);
    if (fsdp_checkpoint_parse("HERE", text, &again, &error) != FSDP_OK) fail_msg("%s", error.message);
    char *printed = fsdp_checkpoint_print(again);
    assert_string_equal(printed, text);
    for (int p = 0; p < again->param_count; p++) {
      assert_int_equal(again->params[p].offset, l.checkpoint->params[p].offset);
      assert_int_equal(again->params[p].local_numel, l.checkpoint->params[p].local_numel);
    }
    fsdp_checkpoint_destroy(again);
    free(printed);
    free(text);
    free_layout(&l);
  }
}

// The checksum of a changed manifest, so that only the change is wrong.
static void seal(json_t *root) {
  json_object_del(root, "checksum");
  char *compact = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
  XXH128_hash_t hash = XXH3_128bits(compact, strlen(compact));
  json_object_set_new(
      root, "checksum",
      json_sprintf("%016llx%016llx", (unsigned long long)hash.high64, (unsigned long long)hash.low64));
  free(compact);
}

TEST(wrong_cuts_are_refused) {
  static const struct {
    const char *key, *value; // of the cut, or of the unit; NULL: removed
    const char *wrong;       // what the message names; NULL: nothing is wrong
  } cases[] = {{"dim", "1", NULL},
               {"dim", "2", "\"dim\""},
               {"dim", "0", "\"cut\""}, // 3 rows, not 5
               {"dim", "-1", "\"dim\""},
               {"blocks", "[[5, 1, 1]]", NULL},
               {"blocks", "[[1, 1, 1], [1, 2, 2]]", NULL},
               {"blocks", "[[1, 1, 1], [1, 2, 3]]", "\"cut\""},
               {"blocks", "[[-5, -1, 1]]", "\"cut\""},
               {"blocks", "[[5, 1, 0], [5, 1, 1]]", "\"cut\""},
               {"blocks", "[[4294967296, 4294967296, 1], [5, 1, 1]]", "\"cut\""},
               {"blocks", "[[4611686018427387904, 1, 1], [4611686018427387904, 1, 1]]", "\"cut\""},
               {"blocks", "[[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1]]", "\"cut\""},
               {"blocks", "[]", "\"cut\""},
               {"item_axes", "[\"tensor\"]", "\"cut\""}, // twice
               {"group_axes", "[\"fsdp\"]", "\"replica_axes\""},
               {"group_axes", "[\"fsdp\", \"tensor\"]", "\"replica_axes\""},
               {"group_axes", "[\"data\"]", "\"group_axes\""}, // of size 1
               {"group_axes", "[\"tensor\", \"tensor\"]", "\"group_axes\""},
               {"group_axes", "[\"data\", \"tensor\"]", "\"group_axes\""}, // the second is right
               {"shard_axes", "[\"fsdp\", \"fsdp\"]", "\"shard_axes\""},
               {"group_axes", "[]", "\"replica_axes\""},
               {"cut", NULL, "\"replica_axes\""},
               {"replica_axes", "[\"tensor\"]", "\"replica_axes\""},
               {"replica_axes", "[\"fsdp\"]", "\"replica_axes\""},
               {"params", "[]", "\"replica_axes\""}};
  layout l;
  make_one(&l);
  char *text = fsdp_checkpoint_print(l.checkpoint);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    json_t *root = json_loads(text, 0, NULL), *unit = json_array_get(json_object_get(root, "units"), 0);
    json_t *param = json_array_get(json_object_get(unit, "params"), 0), *cut = json_object_get(param, "cut");
    json_t *changes = json_object_get(cut, cases[i].key) ? cut : cases[i].value ? unit : param;
    assert_non_null(json_object_get(changes, cases[i].key));
    if (cases[i].value)
      json_object_set_new(changes, cases[i].key, json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
    else
      json_object_del(changes, cases[i].key);
    seal(root);
    char *changed = json_dumps(root, 0);
    fsdp_checkpoint *c = NULL;
    fsdp_error error = {0};
    fsdp_status status = fsdp_checkpoint_parse("HERE", changed, &c, &error);
    if (cases[i].wrong)
      IO_EXPECT(status, FSDP_ERR_INPUT, &error, "HERE", cases[i].wrong);
    else if (status != FSDP_OK)
      fail_msg("case %zu: %s", i, error.message);
    fsdp_checkpoint_destroy(c);
    free(changed);
    json_decref(root);
  }
  free(text);
  free_layout(&l);
}

// Parts of a tensor are all of it, each once, here [0, 2] and [2, 3]. Builds that know none read version 6.
TEST(wrong_parts_are_refused) {
  static const char *const cases[] = {"[0, 2]", "[0, 1]", "[0, 3]", "[1, 1]", "[-1, 2]", "[0, 0]", "3"};
  fsdp_plan_config config = harness_routed_plan("fsdp=2");
  config.expert_blocks = 2;
  layout l;
  make_real(&l, &config);
  char *text = fsdp_checkpoint_print(l.checkpoint);
  assert_non_null(strstr(text, "\"version\": 7"));
  for (size_t i = 0, u, p; i < sizeof cases / sizeof *cases; i++) {
    json_t *root = json_loads(text, 0, NULL), *first = NULL, *unit, *param;
    json_array_foreach(json_object_get(root, "units"), u, unit)
        json_array_foreach(json_object_get(unit, "params"), p, param) {
      json_t *cut = json_object_get(param, "cut");
      first = !first && json_object_get(cut, "part") ? cut : first;
    }
    assert_int_equal(json_object_set_new(first, "part", json_loads(cases[i], JSON_DECODE_ANY, NULL)), 0);
    seal(root);
    char *changed = json_dumps(root, 0);
    fsdp_checkpoint *c = NULL;
    fsdp_error error = {0};
    const fsdp_status status = fsdp_checkpoint_parse("HERE", changed, &c, &error);
    if (i > 0) IO_EXPECT(status, FSDP_ERR_INPUT, &error, "HERE", "\"part\"");
    assert_true(i > 0 || status == FSDP_OK);
    fsdp_checkpoint_destroy(c);
    free(changed);
    json_decref(root);
  }
  free(text);
  free_layout(&l);
}

// Which bits states were rounded with: said by every manifest but older ones, when one generator drew all.
TEST(rounding_is_read) {
  static const struct {
    const char *said, *read; // said NULL: nothing
  } cases[] = {{NULL, "philox-4x32-10"}, {"philox-4x32-7", "philox-4x32-7"}, {"another", "another"}};
  layout l;
  make_one(&l);
  char *text = fsdp_checkpoint_print(l.checkpoint);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    json_t *root = json_loads(text, 0, NULL);
    json_t *random = json_object_get(json_object_get(root, "progress"), "random");
    assert_non_null(json_object_get(random, "rounding"));
    json_object_del(random, "rounding");
    if (cases[i].said) json_object_set_new(random, "rounding", json_string(cases[i].said));
    seal(root);
    char *changed = json_dumps(root, 0);
    fsdp_checkpoint *c = NULL;
    fsdp_error error = {0};
    IO_OK(fsdp_checkpoint_parse("HERE", changed, &c, &error), &error);
    assert_string_equal(c->progress.rounding, cases[i].read);
    fsdp_checkpoint_destroy(c);
    free(changed);
    json_decref(root);
  }
  free(text);
  free_layout(&l);
}
