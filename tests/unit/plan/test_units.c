// Units and the printed tree against expected outputs and against counts that PyTorch's policy gives.
#include "models/model.h"
#include "runtime/plan/mesh/boxes.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>
#include <string.h>

typedef struct wrapped {
  fsdp_graph *graph;
  fsdp_units *units;
} wrapped;

static wrapped wrap_config(const fsdp_model_config *config, fsdp_wrap_policy policy, int shard_count) {
  wrapped w = {.graph = fsdp_model_forward(config, 1, 16)};
  fsdp_mesh mesh = fsdp_mesh_of(1, shard_count);
  fsdp_error error;
  place_by_default(w.graph, &mesh);
  assert_int_equal(fsdp_units_create(w.graph, &policy, &mesh, &w.units, &error), FSDP_OK);
  return w;
}

static wrapped wrap_preset(const char *preset, fsdp_wrap_policy policy) {
  fsdp_model_config config = model_of_preset(preset);
  return wrap_config(&config, policy, 8);
}

static void unwrap(wrapped w) {
  fsdp_units_destroy(w.units);
  fsdp_graph_destroy(w.graph);
}

static fsdp_wrap_policy by_size(int64_t numel) {
  return (fsdp_wrap_policy){FSDP_WRAP_SIZE, numel, NULL};
}

static void assert_tree(const char *preset) {
  char path[256], *expected = NULL, *printed = NULL;
  size_t expected_bytes = 0, printed_bytes = 0;
  snprintf(path, sizeof path, "%s/tests/golden/accept/%s.numel-to-wrap-1e8.tree.txt", FSDP_SOURCE_DIR,
           preset);
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  assert_true(getdelim(&expected, &expected_bytes, EOF, file) > 0);
  fclose(file);
  wrapped w = wrap_preset(preset, by_size(100000000));
  FILE *out = open_memstream(&printed, &printed_bytes);
  fsdp_units_print_tree(w.units, w.graph, out);
  fclose(out);
  assert_string_equal(printed, expected);
  free(printed);
  free(expected);
  unwrap(w);
}

TEST(test_trees) {
  assert_tree("llama2-7b");
  assert_tree("llama2-70b");
}

TEST(test_unit_counts) {
  const struct {
    const char *preset;
    double numel;
    int count;
  } cases[] = {{"llama2-7b", 1e8, 36},   {"llama2-70b", 1e8, 323}, {"llama2-7b", 5e7, 67},
               {"llama2-7b", 2e8, 33},   {"llama2-7b", 1e9, 2},    {"llama2-7b", 1e10, 1},
               {"llama3-405b", 1e8, 634}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    wrapped w = wrap_preset(cases[i].preset, by_size((int64_t)cases[i].numel));
    assert_int_equal(w.units->count, cases[i].count);
    unwrap(w);
  }
}

TEST(test_published_sizes) {
  wrapped w = wrap_preset("llama2-70b", by_size(100000000));
  assert_int_equal(w.units->units[0].numel, 1318912);
  unwrap(w);
  w = wrap_preset("llama2-7b", by_size(100000000));
  assert_string_equal(w.units->units[1].path, "model");
  assert_int_equal(w.units->units[1].numel, 2147749888);
  assert_int_equal(w.units->units[0].numel, 0);
  assert_int_equal(w.units->units[0].padded_numel, 0);
  unwrap(w);
  fsdp_model_config config = model_of_preset("llama2-7b");
  assert_int_equal(fsdp_model_parameter_count(&config), 6738415616);
  config = model_of_preset("llama-1b");
  assert_int_equal(fsdp_model_parameter_count(&config), 1071681536);
}

static fsdp_model_config odd_config(bool tied) {
  return (fsdp_model_config){.family = family_of_preset("tiny"),
                             .vocab_size = 321,
                             .hidden_size = 42,
                             .intermediate_size = 101,
                             .num_layers = 2,
                             .num_heads = 3,
                             .num_kv_heads = 1,
                             .head_dim = 14,
                             .norm_eps = 1e-5,
                             .rope_theta = 1e4,
                             .tie_word_embeddings = tied};
}

// Every element of every parameter lies in exactly one shard, at an aligned offset, in state-dict order.
TEST(test_layout_covers_parameters) {
  const char *const classes[] = {"LlamaMLP", "Linear,LlamaRMSNorm", "LlamaDecoderLayer"};
  for (int ranks = 1; ranks <= 8; ranks++) {
    for (int k = 0; k < 6; k++) {
      fsdp_model_config config = odd_config(k % 2 == 0);
      fsdp_wrap_policy policy = {k < 3 ? FSDP_WRAP_MODULE : (fsdp_wrap_kind)(k - 3), 5000, classes[k % 3]};
      wrapped w = wrap_config(&config, policy, ranks);
      int64_t seen = 0, numel = 0;
      for (int u = 0; u < w.units->count; u++) {
        const fsdp_unit *unit = &w.units->units[u];
        assert_int_equal(unit->padded_numel, unit->shard_numel * ranks);
        assert_int_equal(unit->shard_numel % FSDP_UNIT_ALIGN_ELEMS, 0);
        numel += unit->numel;
        int64_t expected_offset = 0;
        for (int i = 0; i < unit->param_count; i++) {
          const fsdp_unit_param *slot = &w.units->params[unit->first_param + i];
          assert_int_equal(slot->offset, expected_offset);
          if (i) assert_true(slot->param > slot[-1].param);
          expected_offset += (w.graph->params[slot->param].numel + 15) / 16 * 16;
        }
        for (int r = 0; r < ranks; r++) {
          int count;
          fsdp_shard_run *runs = fsdp_units_shard_runs(w.units, w.graph, u, r, &count);
          for (int i = 0; i < count; i++) seen += runs[i].numel;
          free(runs);
        }
      }
      assert_int_equal(numel, fsdp_model_parameter_count(&config));
      assert_int_equal(seen, numel);
      unwrap(w);
    }
  }
}

TEST(test_tied_head_belongs_to_embedding) {
  fsdp_model_config config = odd_config(true);
  wrapped w = wrap_config(&config, (fsdp_wrap_policy){.kind = FSDP_WRAP_BLOCK}, 2);
  assert_int_equal(w.units->count, 4); // root, embedding, two layers: no unit for the tied head
  assert_string_equal(w.graph->params[0].name, "model.embed_tokens.weight");
  assert_string_equal(w.units->units[w.units->unit_of_param[0]].path, "model.embed_tokens");
  unwrap(w);
}

static void expect_classes_refused(const char *classes, const char *part) {
  fsdp_model_config config = odd_config(false);
  fsdp_graph *graph = fsdp_model_forward(&config, 1, 16);
  fsdp_wrap_policy policy = {.kind = FSDP_WRAP_MODULE, .classes = classes};
  fsdp_units *units = NULL;
  fsdp_mesh mesh = fsdp_mesh_of(1, 2);
  fsdp_error error;
  assert_int_equal(fsdp_units_create(graph, &policy, &mesh, &units, &error), FSDP_ERR_OPTION);
  assert_non_null(strstr(error.message, part));
  fsdp_graph_destroy(graph);
}

TEST(test_refused_classes) {
  expect_classes_refused("LlamaMLP,GPT2Block", "'GPT2Block', which the model does not have");
  expect_classes_refused("LlamaMLP,Linear,LlamaMLP", "'LlamaMLP' twice");
}
