// Decoders of Llama's kind that differ from it in little, a row or a table of each: what their configurations
// mean, which are refused, and what their graphs have beside a Llama's.
#include "tests/support/models.h"

#include "models/graph/graph.h"
#include "tests/support/unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZES_BUT_LAYERS                                                                                     \
  "\"vocab_size\":31,\"hidden_size\":24,\"intermediate_size\":40,\"num_attention_heads\":4"
#define SIZES   SIZES_BUT_LAYERS ",\"num_hidden_layers\":3"
#define MISTRAL "{\"model_type\":\"mistral\"," SIZES ",\"num_key_value_heads\":2"
#define QWEN2   "{\"model_type\":\"qwen2\"," SIZES ",\"num_key_value_heads\":2"
#define QWEN3                                                                                                \
  "{\"model_type\":\"qwen3\"," SIZES_BUT_LAYERS ",\"num_hidden_layers\":2,\"num_key_value_heads\":2"
#define HEADS  QWEN3 ",\"head_dim\":10"
#define WINDOW QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":5"
#define FULL   "\"full_attention\""
#define SLIDES "\"sliding_attention\""
// Without key/value heads, and with heads that divide any family's defaults.
#define DEFAULTS(type, heads)                                                                                \
  "{\"model_type\":\"" type "\",\"vocab_size\":31,\"hidden_size\":64,\"intermediate_size\":40,"              \
  "\"num_hidden_layers\":3,\"num_attention_heads\":" heads "}"

// As the hub has them.
static const char mistral_7b[] =
    "{\"architectures\":[\"MistralForCausalLM\"],\"bos_token_id\":1,\"eos_token_id\":2,\"hidden_act\":"
    "\"silu\","
    "\"hidden_size\":4096,\"initializer_range\":0.02,\"intermediate_size\":14336,"
    "\"max_position_embeddings\":32768,\"model_type\":\"mistral\",\"num_attention_heads\":32,"
    "\"num_hidden_layers\":32,\"num_key_value_heads\":8,\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,"
    "\"sliding_window\":4096,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\","
    "\"transformers_version\":\"4.34.0.dev0\",\"use_cache\":true,\"vocab_size\":32000}";
static const char qwen25_7b[] =
    "{\"architectures\":[\"Qwen2ForCausalLM\"],\"attention_dropout\":0.0,\"bos_token_id\":151643,"
    "\"eos_token_id\":151643,\"hidden_act\":\"silu\",\"hidden_size\":3584,\"initializer_range\":0.02,"
    "\"intermediate_size\":18944,\"max_position_embeddings\":131072,\"max_window_layers\":28,"
    "\"model_type\":\"qwen2\",\"num_attention_heads\":28,\"num_hidden_layers\":28,\"num_key_value_heads\":4,"
    "\"rms_norm_eps\":1e-06,\"rope_theta\":1000000.0,\"sliding_window\":131072,\"tie_word_embeddings\":false,"
    "\"torch_dtype\":\"bfloat16\",\"transformers_version\":\"4.40.1\",\"use_cache\":true,"
    "\"use_mrope\":false,\"use_sliding_window\":false,\"vocab_size\":152064}";
static const char qwen3_8b[] =
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,"
    "\"bos_token_id\":151643,\"eos_token_id\":151645,\"head_dim\":128,\"hidden_act\":\"silu\","
    "\"hidden_size\":4096,\"initializer_range\":0.02,\"intermediate_size\":12288,"
    "\"max_position_embeddings\":40960,\"max_window_layers\":36,\"model_type\":\"qwen3\","
    "\"num_attention_heads\":32,\"num_hidden_layers\":36,\"num_key_value_heads\":8,\"rms_norm_eps\":1e-06,"
    "\"rope_scaling\":null,\"rope_theta\":1000000,\"sliding_window\":null,\"tie_word_embeddings\":false,"
    "\"torch_dtype\":\"bfloat16\",\"transformers_version\":\"4.51.0\",\"use_cache\":true,"
    "\"use_sliding_window\":false,\"vocab_size\":151936}";

TEST(test_presets) {
  static const struct {
    const char *json, *preset;
    int64_t window;
  } models[] = {{mistral_7b, "mistral-7b", 4096}, {qwen25_7b, "qwen2.5-7b", 0}, {qwen3_8b, "qwen3-8b", 0}};
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    char out[512];
    fsdp_model_config c = model_of_json(models[i].json), preset;
    preset = model_of_preset(models[i].preset);
    if (fsdp_model_differs(&c, &preset, FSDP_MODEL_ALL, out, sizeof out)) fail_msg("%s", out);
    assert_true(c.window == models[i].window && c.head_dim == 128);
  }
}

// Of Transformers 5.23. Qwen3 has heads of 128, whatever the hidden size.
TEST(test_defaults) {
  static const struct {
    const char *json;
    int64_t window, kv_heads, head_dim, positions;
  } models[] = {{DEFAULTS("mistral", "16"), 4096, 8, 4, 131072},
                {DEFAULTS("qwen2", "32"), 0, 32, 2, 32768},
                {DEFAULTS("qwen3", "32"), 0, 32, 128, 32768}};
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    fsdp_model_config c = model_of_json(models[i].json);
    assert_true(c.window == models[i].window && c.num_kv_heads == models[i].kv_heads);
    assert_true(c.head_dim == models[i].head_dim && c.max_position_embeddings == models[i].positions);
    assert_true(c.norm_eps == 1e-6 && c.rope_theta == 10000 && !c.tie_word_embeddings);
  }
}

// null is none, for a window; as many as heads, for key/value heads.
TEST(test_null) {
  fsdp_model_config c =
      model_of_json("{\"model_type\":\"mistral\"," SIZES ",\"num_key_value_heads\":null,"
                    "\"sliding_window\":null,\"head_dim\":10,\"tie_word_embeddings\":true}");
  assert_true(c.window == 0 && c.num_kv_heads == 4 && c.head_dim == 10 && c.tie_word_embeddings);
  expect_model_read_back(&c);
  char *json = json_of_model(&c);
  assert_non_null(strstr(json, "\"sliding_window\":null"));
  free(json);
  c = model_of_json("{\"model_type\":\"qwen2\"," SIZES ",\"num_key_value_heads\":null,\"head_dim\":10,"
                    "\"tie_word_embeddings\":true}");
  assert_true(c.num_kv_heads == 4 && c.head_dim == 10 && c.tie_word_embeddings);
  expect_model_read_back(&c);
  c = model_of_json(HEADS ",\"tie_word_embeddings\":true,\"attention_bias\":null}");
  assert_true(c.head_dim == 10 && c.tie_word_embeddings);
  expect_model_read_back(&c);
}

// Each with the window of its layers.
TEST(test_windows) {
  static const struct {
    const char *json;
    int64_t windows[3];
  } cases[] = {
      {MISTRAL ",\"sliding_window\":5}", {5, 5, 5}},
      {MISTRAL ",\"sliding_window\":1}", {1, 1, 1}},
      {MISTRAL ",\"sliding_window\":null}", {0, 0, 0}},
      {QWEN3 ",\"use_sliding_window\":true,\"sliding_window\":3,\"max_window_layers\":1}", {0, 3}},
      {QWEN2 "}", {0, 0, 0}},
      {QWEN2 ",\"sliding_window\":5,\"max_window_layers\":0}", {0, 0, 0}}, // not used
      {WINDOW "}", {0, 0, 0}},                                             // from layer 28 on
      {WINDOW ",\"max_window_layers\":0}", {5, 5, 5}},
      {WINDOW ",\"max_window_layers\":1}", {0, 5, 5}},
      {WINDOW ",\"max_window_layers\":2}", {0, 0, 5}},
      {WINDOW ",\"max_window_layers\":3}", {0, 0, 0}},
      {QWEN2 ",\"use_sliding_window\":true,\"max_window_layers\":2}", {0, 0, 4096}},
      {QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":null,\"max_window_layers\":0}", {0, 0, 0}},
      {QWEN2 ",\"layer_types\":[" FULL "," FULL "," FULL "]}", {0, 0, 0}},
      {WINDOW ",\"layer_types\":[" FULL "," FULL "," FULL "]}", {0, 0, 0}},
      {WINDOW ",\"layer_types\":[" FULL "," SLIDES "," SLIDES "]}", {0, 5, 5}},
      {WINDOW ",\"layer_types\":[" SLIDES "," SLIDES "," SLIDES "]}", {5, 5, 5}},
      // The list counts, as in Transformers.
      {WINDOW ",\"max_window_layers\":0,\"layer_types\":[" FULL "," FULL "," SLIDES "]}", {0, 0, 5}},
      {WINDOW ",\"max_window_layers\":1,\"layer_types\":null}", {0, 5, 5}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int64_t windows[3] = {0};
    fsdp_model_config c = model_of_json(cases[i].json);
    windows_of_model(&c, windows);
    for (int l = 0; l < 3; l++)
      if (windows[l] != cases[i].windows[l])
        fail_msg("%s: layer %d has %lld", cases[i].json, l, (long long)windows[l]);
    expect_model_read_back(&c);
  }
}

TEST(test_refused) {
  static const refused_model models[] = {
      {"{\"model_type\":\"mistral\"," SIZES "}", {"num_attention_heads 4", "num_key_value_heads 8"}},
      {MISTRAL ",\"sliding_window\":0}", {"\"sliding_window\" is 0", "at least 1"}},
      {MISTRAL ",\"sliding_window\":-4096}", {"\"sliding_window\" is -4096"}},
      {MISTRAL ",\"sliding_window\":4.5}", {"\"sliding_window\" is 4.5", "whole number"}},
      {MISTRAL ",\"layer_types\":[\"full_attention\"]}",
       {"\"layer_types\" is [\"full_attention\"]", "ministral"}},
      {MISTRAL ",\"hidden_act\":\"gelu\"}", {"\"hidden_act\" is \"gelu\"", "silu"}},
      {MISTRAL ",\"attention_dropout\":0.1}", {"\"attention_dropout\" is 0.1", "0.0"}},
      {MISTRAL ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0}}",
       {"\"rope_type\" is \"yarn\"", "llama3"}},
      {MISTRAL ",\"rope_parameters\":{\"rope_type\":\"longrope\"}}", {"\"rope_type\" is \"longrope\""}},
      {QWEN3 ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"yarn\",\"factor\":4}}}",
       {"\"full_attention\" is {\"rope_type\":\"yarn\"", "one level above"}},
      {MISTRAL ",\"architectures\":[\"MistralForSequenceClassification\"]}", {"MistralForCausalLM"}},
      {MISTRAL ",\"quantization_config\":{\"bits\":4}}", {"quantization_config"}},
      {"{\"model_type\":\"qwen2\"," SIZES "}", {"num_attention_heads 4", "num_key_value_heads 32"}},
      {QWEN2 ",\"use_mrope\":true}", {"\"use_mrope\" is true", "not supported"}},
      {QWEN2 ",\"hidden_act\":\"gelu\"}", {"\"hidden_act\" is \"gelu\"", "silu"}},
      {QWEN2 ",\"attention_dropout\":0.1}", {"\"attention_dropout\" is 0.1"}},
      {QWEN2 ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0}}",
       {"\"rope_type\" is \"yarn\"", "llama3"}},
      {QWEN2 ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4.0}}", {"\"rope_type\" is \"dynamic\""}},
      {WINDOW ",\"max_window_layers\":-1}", {"\"max_window_layers\" is -1", "from 0"}},
      {QWEN2 ",\"use_sliding_window\":1}", {"\"use_sliding_window\" is 1", "true or false"}},
      {QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":0}", {"\"sliding_window\" is 0"}},
      {WINDOW ",\"layer_types\":\"full_attention\"}", {"\"layer_types\" is \"full", "list", "3 layers"}},
      {WINDOW ",\"layer_types\":[" FULL "," FULL "]}", {"\"layer_types\" is [", "3 layers"}},
      {WINDOW ",\"layer_types\":[" FULL "," FULL ",\"chunked_attention\"]}",
       {"\"layer_types\" is \"chunked_attention\"", "sliding_attention"}},
      {WINDOW ",\"layer_types\":[" FULL "," FULL ",7]}", {"\"layer_types\" is 7"}},
      {WINDOW ",\"layer_types\":[" SLIDES "," FULL "," SLIDES "]}",
       {"\"layer_types\" is [\"sliding_attention\",\"full_attention\"", "after the first with a window"}},
      {WINDOW ",\"layer_types\":[" FULL "," SLIDES "," FULL "]}", {"after the first with a window"}},
      {QWEN2 ",\"layer_types\":[" FULL "," FULL "," SLIDES "]}",
       {"there is no window", "use_sliding_window"}},
      {QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":null,\"layer_types\":[" SLIDES "," SLIDES
             "," SLIDES "]}",
       {"there is no window", "\"sliding_window\" its size"}},
      {HEADS ",\"attention_bias\":true}", {"\"attention_bias\" is true", "biases are not supported"}},
      {HEADS ",\"hidden_act\":\"gelu\"}", {"\"hidden_act\" is \"gelu\"", "silu"}},
      {HEADS ",\"attention_dropout\":0.1}", {"\"attention_dropout\" is 0.1"}},
      {HEADS ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0}}",
       {"\"rope_type\" is \"yarn\"", "llama3"}},
      {HEADS ",\"layer_types\":[\"sliding_attention\",\"full_attention\"]}",
       {"layer_types", "after the first"}},
      {HEADS ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", {"there is no window"}},
      {QWEN3 ",\"head_dim\":7}", {"head_dim is 7", "even"}},
      {"{\"model_type\":\"qwen3_next\"," SIZES "}",
       {"\"model_type\" is \"qwen3_next\"", "\"qwen3\"", "\"gpt2\""}},
  };
  expect_models_refused(models, (int)(sizeof models / sizeof *models));
}

TEST(test_differences) {
  static const compared_key keys[] = {{"tie_word_embeddings", "true", true},
                                      {"head_dim", "8", true},
                                      {"rope_theta", "1e6", true},
                                      {"rms_norm_eps", "1e-5", true},
                                      {"max_position_embeddings", "7", false},
                                      {"initializer_range", "0.5", false}};
  static const char *const bases[] = {MISTRAL, QWEN2, QWEN3};
  for (int i = 0; i < 3; i++) expect_keys_compared(bases[i], keys, (int)(sizeof keys / sizeof *keys));
  static const compared_key windows[] = {{"sliding_window", "4095", true}, {"sliding_window", "null", true}};
  expect_keys_compared(MISTRAL, windows, 2);
  static const compared_key window = {"sliding_window", "6", true};
  expect_keys_compared(QWEN2 ",\"use_sliding_window\":true,\"max_window_layers\":1", &window, 1);
  char out[256];
  fsdp_model_config none = model_of_json(QWEN2 "}"), one = model_of_json(WINDOW ",\"max_window_layers\":1}"),
                    two = model_of_json(WINDOW ",\"max_window_layers\":2}");
  assert_true(fsdp_model_differs(&one, &two, FSDP_MODEL_NUMBERS, out, sizeof out));
  assert_string_equal(out, "max_window_layers 1 → 2");
  assert_true(fsdp_model_differs(&none, &one, FSDP_MODEL_NUMBERS, out, sizeof out));
  assert_non_null(strstr(out, "use_sliding_window false → true, sliding_window none → 5"));
}

// Names, shapes and drawing of a layer's parameters, in the order of the state dict.
TEST(test_parameters) {
  static const struct {
    const char *json;
    int layers, of_layer; // parameters of a layer
    struct {
      const char *name;
      int64_t shape[2];
    } params[8];
    float mean; // of what has one dimension
  } models[] = {{QWEN2 "}",
                 3,
                 12,
                 {{"q_proj.weight", {24, 24}},
                  {"q_proj.bias", {24}},
                  {"k_proj.weight", {12, 24}},
                  {"k_proj.bias", {12}},
                  {"v_proj.weight", {12, 24}},
                  {"v_proj.bias", {12}},
                  {"o_proj.weight", {24, 24}}},
                 0},
                {HEADS "}",
                 2,
                 11,
                 {{"q_proj.weight", {40, 24}},
                  {"k_proj.weight", {20, 24}},
                  {"v_proj.weight", {20, 24}},
                  {"o_proj.weight", {24, 40}},
                  {"q_norm.weight", {10}},
                  {"k_norm.weight", {10}}},
                 1}};
  for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
    fsdp_model_config c = model_of_json(models[m].json);
    fsdp_graph *g = fsdp_model_graph(&c, 1, 2);
    assert_int_equal(g->param_count, 1 + models[m].layers * models[m].of_layer + 2);
    for (int i = 0; models[m].params[i].name; i++) {
      char name[96];
      const int64_t *shape = models[m].params[i].shape;
      const fsdp_param *p = &g->params[1 + models[m].of_layer + i];
      snprintf(name, sizeof name, "model.layers.1.self_attn.%s", models[m].params[i].name);
      assert_string_equal(p->name, name);
      assert_int_equal(p->dims, shape[1] ? 2 : 1);
      assert_memory_equal(p->shape, shape, (size_t)p->dims * sizeof(int64_t));
      assert_true(p->init_mean == (p->dims == 1 ? models[m].mean : 0));
      assert_true(p->init_deviation == (p->dims == 2 ? 0.02f : 0));
    }
    fsdp_graph_destroy(g);
  }
}

// By hand: N = 7241732096 - 32000 * 4096. Of 32768 positions, each token attends to 4096 - 4096 / 16 on
// average; of 4096, to half.
TEST(test_flops_of_mistral) {
  fsdp_model_config c = model_of_json(mistral_7b);
  double gemms = 6.0 * 7110660096.0, pair = 12.0 * 32 * 4096;
  assert_true(fsdp_model_flops_per_token(&c, 4096, FSDP_FLOPS_CAUSAL) == gemms + pair * 2048);
  assert_true(fsdp_model_flops_per_token(&c, 32768, FSDP_FLOPS_CAUSAL) == gemms + pair * 3840);
  assert_true(fsdp_model_flops_per_token(&c, 32768, FSDP_FLOPS_ALL_PAIRS) == gemms + pair * 32768);
  c.window = 0;
  assert_true(fsdp_model_flops_per_token(&c, 32768, FSDP_FLOPS_CAUSAL) == gemms + pair * 16384);
}

// By hand, three layers: N = 31 * 24 + 3 * (4 * 24 * 18 + 3 * 24 * 40 + 2 * 24 + 48) + 24, heads of 4 * 6. Of
// 20 positions, each token attends to 10, or to 5 - 25 / 40 with a window of 5.
TEST(test_flops_of_qwen2) {
  fsdp_model_config c = model_of_json(WINDOW ",\"max_window_layers\":1}");
  double gemms = 6.0 * (31 * 24 + 3 * (1728 + 2880 + 48 + 48) + 24), pair = 12.0 * 24;
  assert_true(fsdp_model_flops_per_token(&c, 20, FSDP_FLOPS_CAUSAL) == gemms + pair * (10 + 2 * 4.375));
  assert_true(fsdp_model_flops_per_token(&c, 20, FSDP_FLOPS_ALL_PAIRS) == gemms + pair * 60);
  assert_true(fsdp_model_flops_per_token(&c, 5, FSDP_FLOPS_CAUSAL) == gemms + pair * 7.5);
}

// By hand: N = 8190735360 - 151936 * 4096, heads of 32 * 128.
TEST(test_flops_of_qwen3) {
  fsdp_model_config c = model_of_json(qwen3_8b);
  double gemms = 6.0 * 7568405504.0, pair = 12.0 * 36 * 4096;
  assert_true(fsdp_model_flops_per_token(&c, 4096, FSDP_FLOPS_CAUSAL) == gemms + pair * 2048);
  assert_true(fsdp_model_flops_per_token(&c, 4096, FSDP_FLOPS_ALL_PAIRS) == gemms + pair * 4096);
  c.head_dim = 64; // the pairs are of heads, whatever the hidden size
  double fewer = 6.0 * (7568405504.0 - 36 * (80.0 * 64 * 4096 + 128));
  assert_true(fsdp_model_flops_per_token(&c, 4096, FSDP_FLOPS_CAUSAL) == fewer + pair * 1024);
}

// What Transformers 5.23 prints of a model: `norms` behind the products of attention.
static void expect_tree(const char *json, const char *prefix, int head, const char *bias, const char *norms) {
  fsdp_model_config c = model_of_json(json);
  const int layers = (int)c.num_layers;
  char *tree = tree_of_model(&c), expected[4096];
  snprintf(expected, sizeof expected,
           "%sForCausalLM(\n"
           "  (model): %sModel(\n"
           "    (embed_tokens): Embedding(31, 24)\n"
           "    (layers): ModuleList(\n"
           "      (0-%d): %d x %sDecoderLayer(\n"
           "        (self_attn): %sAttention(\n"
           "          (q_proj): Linear(in_features=24, out_features=%d, bias=%s)\n"
           "          (k_proj): Linear(in_features=24, out_features=%d, bias=%s)\n"
           "          (v_proj): Linear(in_features=24, out_features=%d, bias=%s)\n"
           "          (o_proj): Linear(in_features=%d, out_features=24, bias=False)\n"
           "%s"
           "        )\n"
           "        (mlp): %sMLP(\n"
           "          (gate_proj): Linear(in_features=24, out_features=40, bias=False)\n"
           "          (up_proj): Linear(in_features=24, out_features=40, bias=False)\n"
           "          (down_proj): Linear(in_features=40, out_features=24, bias=False)\n"
           "          (act_fn): SiLUActivation()\n"
           "        )\n"
           "        (input_layernorm): %sRMSNorm((24,), eps=1e-06)\n"
           "        (post_attention_layernorm): %sRMSNorm((24,), eps=1e-06)\n"
           "      )\n"
           "    )\n"
           "    (norm): %sRMSNorm((24,), eps=1e-06)\n"
           "    (rotary_emb): %sRotaryEmbedding()\n"
           "  )\n"
           "  (lm_head): Linear(in_features=24, out_features=31, bias=False)\n"
           ")\n",
           prefix, prefix, layers - 1, layers, prefix, prefix, 4 * head, bias, 2 * head, bias, 2 * head, bias,
           4 * head, norms, prefix, prefix, prefix, prefix, prefix);
  assert_string_equal(tree, expected);
  free(tree);
}

TEST(test_trees) {
  expect_tree(MISTRAL "}", "Mistral", 6, "False", "");
  expect_tree(QWEN2 "}", "Qwen2", 6, "True", "");
  expect_tree(HEADS "}", "Qwen3", 10, "False",
              "          (q_norm): Qwen3RMSNorm((10,), eps=1e-06)\n"
              "          (k_norm): Qwen3RMSNorm((10,), eps=1e-06)\n");
}
