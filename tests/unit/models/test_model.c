// What can be asked of a model without naming its family: presets, counts, printing and reading, the graph.
#include "models/family.h"
#include "models/model.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

// Every preset, in the order of --help, with the number of parameters that its weights are published with
// (`tiny`, `llama-1b` and `tiny-...` are counted by hand).
static const struct {
  const char *name;
  int64_t parameters;
} published[] = {
    {"tiny", 803968},
    {"llama-1b", 1071681536},
    {"llama2-7b", 6738415616},
    {"llama2-13b", 13015864320},
    {"llama2-70b", 68976648192},
    {"llama3-8b", 8030261248},
    {"llama3-70b", 70553706496},
    {"llama3-405b", 405853388800},
    {"gpt2", 124439808},
    {"gpt2-medium", 354823168},
    {"gpt2-large", 774030080},
    {"gpt2-xl", 1557611200},
    {"mistral-7b", 7241732096},
    {"qwen2.5-7b", 7615616512},
    {"qwen2.5-14b", 14770033664},
    {"qwen3-8b", 8190735360},
    {"tiny-mixtral", 353600},
    {"mixtral-8x7b", 46702792704},
    {"mixtral-8x22b", 140630071296},
    {"tiny-qwen3-moe", 206208},
    {"qwen3-30b-a3b", 30532122624},
    {"qwen3-235b-a22b", 235093634560},
    {"tiny-olmoe", 214592},
    {"olmoe-1b-7b", 6919161856},
    {"tiny-qwen2-moe", 243392},
    {"qwen1.5-moe-a2.7b", 14315784192},
    {"tiny-glm4-moe", 274240},
    {"glm-4.5-air", 106852245504},
};
enum { PRESETS = sizeof published / sizeof *published };

TEST(test_presets_are_as_published) {
  for (int i = 0; i < PRESETS; i++) {
    assert_string_equal(fsdp_model_preset_name(i), published[i].name);
    assert_true(fsdp_model_is_preset(published[i].name));
    fsdp_model_config config = model_of_preset(published[i].name);
    assert_int_equal(fsdp_model_parameter_count(&config), published[i].parameters);
  }
  assert_string_equal(fsdp_model_type(0), "llama");
  assert_null(fsdp_model_type(-1));
  assert_null(fsdp_model_type(1000));
  assert_null(fsdp_model_preset_name(PRESETS));
  assert_null(fsdp_model_preset_name(-1));
  assert_false(fsdp_model_is_preset("llama9"));
  fsdp_model_config config;
  fsdp_error error;
  assert_int_equal(fsdp_model_preset("llama9", &config, &error), FSDP_ERR_OPTION);
  assert_non_null(strstr(error.message, "'llama9'"));
  for (int i = 0; i < PRESETS; i++) assert_non_null(strstr(error.message, published[i].name));
}

// The closed formula and the graph count the same parameters; a block is a module of the block's class.
TEST(test_graphs_hold_what_is_counted) {
  for (int i = 0; i < 2 * PRESETS; i++) {
    fsdp_model_config config = model_of_preset(published[i / 2].name);
    config.tie_word_embeddings = i % 2;
    fsdp_graph *graph = fsdp_model_graph(&config, 1, 2);
    int64_t numel = 0;
    int blocks = 0;
    for (int p = 0; p < graph->param_count; p++)
      if (!graph->params[p].balances) numel += graph->params[p].numel;
    for (int m = 0; m < graph->module_count; m++)
      blocks += !strcmp(graph->modules[m].class_name, graph->block_class);
    assert_int_equal(numel, fsdp_model_parameter_count(&config));
    assert_int_equal(blocks, config.num_layers);
    assert_int_equal(graph->block_count, config.num_layers);
    assert_int_equal(graph->tie_count, i % 2);
    fsdp_graph_destroy(graph);
  }
}

// Every preset reads back as it was printed, also with what it leaves at its default changed.
TEST(test_printed_configurations_are_read_back) {
  for (int i = 0; i < 4 * PRESETS; i++) {
    fsdp_model_config config = model_of_preset(published[i / 4].name), again;
    config.tie_word_embeddings = i % 2;
    if (i % 4 >= 2) config.initializer_range = 1.0 / 3, config.norm_eps = 2e-6 / 3;
    json_t *root = fsdp_model_print(&config);
    fsdp_error error;
    char out[512];
    if (fsdp_model_read(root, "the preset", &again, &error)) fail_msg("%s", error.message);
    json_decref(root);
    assert_false(fsdp_model_differs(&config, &again, FSDP_MODEL_ALL, out, sizeof out));
    assert_ptr_equal(again.family, config.family);
    assert_int_equal(again.head_dim, config.head_dim);
    assert_true(again.norm_eps == config.norm_eps && again.rope_theta == config.rope_theta);
    assert_int_equal(again.max_position_embeddings, config.max_position_embeddings);
  }
}

// Any part of a head that may be rotated: 30 of 44 elements are 0.68.. of them, whose product with 44 is
// below 30.
TEST(test_parts_of_heads_are_read_back) {
  fsdp_model_config config = model_of_preset("tiny-glm4-moe"), again;
  for (config.head_dim = 4; config.head_dim <= 256; config.head_dim += 2)
    for (config.rotary_dim = 2; config.rotary_dim < config.head_dim; config.rotary_dim += 2) {
      json_t *root = fsdp_model_print(&config);
      fsdp_error error;
      if (fsdp_model_read(root, "the preset", &again, &error)) fail_msg("%s", error.message);
      json_decref(root);
      assert_int_equal(again.rotary_dim, config.rotary_dim);
    }
}

// Llama 2 7B at 4096 tokens, by hand: N = 6738415616 - 32000 * 4096, L C T = 32 * 4096 * 4096.
TEST(test_flops) {
  fsdp_model_config config = model_of_preset("llama2-7b");
  double products = 6.0 * 6607343616.0, pairs = 536870912.0;
  assert_true(fsdp_model_flops_per_token(&config, 4096, FSDP_FLOPS_CAUSAL) == products + 6 * pairs);
  assert_true(fsdp_model_flops_per_token(&config, 4096, FSDP_FLOPS_ALL_PAIRS) == products + 12 * pairs);
  config.tie_word_embeddings = true; // the head's gemm is with the embedding, which is then counted
  assert_true(fsdp_model_flops_per_token(&config, 4096, FSDP_FLOPS_CAUSAL) == products + 6 * pairs);
}

// What is refused before a family reads it, by the parts of its message.
TEST(test_other_families_are_refused_by_name) {
  const struct {
    const char *text, *parts[3];
  } cases[] = {
      {"{\"model_type\":\"bert\"}", {"\"model_type\" is \"bert\"", "can be trained: \"llama\"", "folder"}},
      {"{\"model_type\":7}", {"\"model_type\" is 7", "\"llama\"", ""}},
      {"{\"architectures\":[\"BertModel\"]}",
       {"\"architectures\" is [\"BertModel\"]", "can be trained: \"LlamaForCausalLM\"", ""}},
      {"{\"model_type\":\"llama\",\"architectures\":[\"LlamaModel\"]}",
       {"\"architectures\" is [\"LlamaModel\"]", "of \"llama\" only [\"LlamaForCausalLM\"]", ""}},
      {"{\"vocab_size\":7}", {"\"model_type\" is missing", "", ""}},
      {"{\"model_type\":\"llama\",\"vocab_size\":7}", {"\"hidden_size\" is missing", "(llama)", ""}},
      {"{\"model_type\":\"llama\",\"quantization_config\":{}}", {"\"quantization_config\"", "original", ""}},
      {"{\"model_type\":\"llama\",\"is_causal\":false}", {"\"is_causal\" is false", "later ones", "without"}},
      {"{\"model_type\":\"gpt2\",\"per_layer_config\":{\"1\":{\"n_inner\":8}}}",
       {"\"per_layer_config\" is {\"1\":", "layers", "without it"}},
      {"{\"model_type\":\"llama\",\"transformers_weights\":\"other.safetensors\"}",
       {"\"transformers_weights\" is \"other.safetensors\"", "only \"model.safetensors\"", ""}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fsdp_model_config config;
    fsdp_error error;
    json_t *root = json_loads(cases[i].text, 0, NULL);
    assert_non_null(root);
    assert_int_equal(fsdp_model_read(root, "HERE", &config, &error), FSDP_ERR_INPUT);
    json_decref(root);
    if (strncmp(error.message, "HERE: ", 6)) fail_msg("does not begin with its place: %s", error.message);
    for (int p = 0; p < 3; p++)
      if (!strstr(error.message, cases[i].parts[p]))
        fail_msg("\"%s\" lacks \"%s\"", error.message, cases[i].parts[p]);
  }
}

static bool note_layers(const fsdp_model_config *config, char *out, size_t out_bytes) {
  if (config->num_layers == 4) return false;
  return snprintf(out, out_bytes, "%d layers", (int)config->num_layers) > 0;
}

// What a family may leave out, and what of it reaches its users.
TEST(test_notes_buffers_and_prefixes) {
  char out[64] = "";
  fsdp_model_config config = model_of_preset("tiny");
  assert_false(fsdp_model_note(&config, out, sizeof out));
  fsdp_family family = *config.family;
  family.note = note_layers;
  family.base_prefix = "model.";
  family.block_class = "Linear";
  config.family = &family;
  assert_false(fsdp_model_note(&config, out, sizeof out));
  config.num_layers = 3;
  assert_true(fsdp_model_note(&config, out, sizeof out));
  assert_string_equal(out, "3 layers");
  fsdp_graph *graph = fsdp_model_graph(&config, 1, 2);
  assert_string_equal(graph->base_prefix, "model.");
  assert_string_equal(graph->block_class, "Linear");
  fsdp_graph_destroy(graph);
  assert_true(fsdp_model_is_buffer("model.layers.3.self_attn.rotary_emb.inv_freq"));
  assert_false(fsdp_model_is_buffer("model.layers.3.self_attn.q_proj.weight"));
  assert_false(fsdp_model_is_buffer("inv_freq"));
}
